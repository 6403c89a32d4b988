//! CreateTopics, DeleteTopics, CreatePartitions and the configurations of topics and brokers.

use kaas_proto::kafka::messages::create_partitions::{CreatePartitionsAssignment, CreatePartitionsTopic};
use kaas_proto::kafka::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatableTopicResult,
};
use kaas_proto::kafka::messages::delete_topics::DeleteTopicState;
use kaas_proto::kafka::messages::describe_configs::{DescribeConfigsResource, DescribeConfigsResult};
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{BrokerId, PartitionIndex, TopicId};

use crate::support::{Broker, Client, Options, TOPIC, TOPIC_ID, set};

fn topic(name: &str) -> CreatableTopic {
    CreatableTopic { name: name.into(), num_partitions: -1, replication_factor: -1, ..Default::default() }
}

fn create(client: &mut Client, version: i16, topics: Vec<CreatableTopic>) -> Vec<CreatableTopicResult> {
    client.call(version, &CreateTopicsRequest { topics, ..Default::default() }).topics
}

fn exists(client: &mut Client, name: &str) -> bool {
    let wanted = metadata::MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    let request =
        MetadataRequest { topics: Some(vec![wanted]), allow_auto_topic_creation: false, ..Default::default() };
    client.call(12, &request).topics[0].error_code == ErrorCode::None
}

/// D45.
#[test]
fn topics_are_created() {
    let broker = Broker::with(Options { settings: vec![("num.partitions", "3")], ..Options::default() });
    let mut client = broker.client();
    for version in 2..=7 {
        let name = format!("new-{version}");
        let wanted = CreatableTopic {
            num_partitions: 2,
            replication_factor: 3,
            configs: vec![CreatableTopicConfig { name: "retention.ms".into(), value: Some("7".into()) }],
            ..topic(&name)
        };
        let rows = create(&mut client, version, vec![topic(&format!("{name}-default")), wanted]);
        assert!(rows.iter().all(|row| row.error_code == ErrorCode::None), "{rows:?}");
        if version >= 5 {
            assert_eq!((rows[0].num_partitions, rows[1].num_partitions), (3, 2));
            assert_eq!((rows[0].replication_factor, rows[1].replication_factor), (1, 1));
            let configs = rows[1].configs.as_ref().unwrap();
            let retention = configs.iter().find(|config| &*config.name == "retention.ms").unwrap();
            assert_eq!((retention.value.as_deref(), retention.config_source), (Some("7"), 1));
            assert!(configs.len() > 20, "the full set");
        }
        assert_eq!(rows[1].topic_id != TopicId::ZERO, version >= 7);
        assert!(exists(&mut client, &name));
    }
}

#[test]
fn every_topic_that_is_asked_for_has_a_row() {
    let broker = Broker::start();
    let mut client = broker.client();
    let config = |name: &str, value: Option<&str>| CreatableTopic {
        configs: vec![CreatableTopicConfig { name: name.into(), value: value.map(KafkaString::from) }],
        ..topic(name)
    };
    let assigned = |name: &str, assignments: &[(i32, &[i32])]| CreatableTopic {
        assignments: assignments
            .iter()
            .map(|(index, brokers)| CreatableReplicaAssignment {
                partition_index: PartitionIndex(*index),
                broker_ids: brokers.iter().map(|id| BrokerId(*id)).collect(),
            })
            .collect(),
        ..topic(name)
    };
    let rows = create(
        &mut client,
        5,
        vec![
            topic("twice"),
            topic(TOPIC),
            topic("a/b"),
            CreatableTopic { num_partitions: 0, ..topic("none") },
            CreatableTopic { num_partitions: -2, ..topic("fewer") },
            CreatableTopic { replication_factor: 0, ..topic("copies") },
            config("unknown.key", Some("1")),
            config("retention.ms", Some("soon")),
            config("segment.bytes", None),
            topic("twice"),
            CreatableTopic { num_partitions: 2, ..assigned("both", &[(0, &[1])]) },
            assigned("gap", &[(0, &[1]), (2, &[1])]),
            assigned("stranger", &[(0, &[1, 77])]),
            assigned("double", &[(0, &[1, 1])]),
            assigned("manual", &[(1, &[2, 1]), (0, &[1])]),
        ],
    );
    let codes: Vec<_> = rows.iter().map(|row| (&*row.name, row.error_code)).collect();
    let expected = [
        ("twice", ErrorCode::InvalidRequest),
        (TOPIC, ErrorCode::TopicAlreadyExists),
        ("a/b", ErrorCode::InvalidTopicException),
        ("none", ErrorCode::InvalidPartitions),
        ("fewer", ErrorCode::InvalidPartitions),
        ("copies", ErrorCode::InvalidReplicationFactor),
        ("unknown.key", ErrorCode::InvalidConfig),
        ("retention.ms", ErrorCode::InvalidConfig),
        ("segment.bytes", ErrorCode::InvalidConfig),
        ("both", ErrorCode::InvalidRequest),
        ("gap", ErrorCode::InvalidReplicaAssignment),
        ("stranger", ErrorCode::InvalidReplicaAssignment),
        ("double", ErrorCode::InvalidReplicaAssignment),
        ("manual", ErrorCode::None),
    ];
    assert_eq!(codes, expected);
    assert!(rows.iter().all(|row| (row.error_code == ErrorCode::None) == row.error_message.is_none()));
    assert_eq!(rows[13].num_partitions, 2);
    assert!(!exists(&mut client, "twice"));
}

#[test]
fn validating_changes_nothing() {
    let broker = Broker::start();
    let mut client = broker.client();
    let request = CreateTopicsRequest { topics: vec![topic("maybe")], validate_only: true, ..Default::default() };
    assert_eq!(client.call(7, &request).topics[0].error_code, ErrorCode::None);
    assert!(!exists(&mut client, "maybe"));
    let grow = CreatePartitionsTopic { name: TOPIC.into(), count: 9, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![grow], validate_only: true, timeout_ms: 1000 };
    assert_eq!(client.call(3, &request).results[0].error_code, ErrorCode::None);
    assert_eq!(broker.view.borrow().topic(TOPIC).unwrap().partitions.len(), 4);
}

#[test]
fn an_answer_that_takes_too_long_is_a_timeout() {
    let broker = Broker::start();
    set(&broker.switches.control_silent, true);
    let mut client = broker.client();
    let request = CreateTopicsRequest { topics: vec![topic("slow")], timeout_ms: 30, ..Default::default() };
    assert_eq!(client.call(7, &request).topics[0].error_code, ErrorCode::RequestTimedOut);
    let request = DeleteTopicsRequest { topic_names: vec![TOPIC.into()], timeout_ms: 30, ..Default::default() };
    assert_eq!(client.call(5, &request).responses[0].error_code, ErrorCode::RequestTimedOut);
}

#[test]
fn topics_are_deleted_by_name_or_id() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, 7, vec![topic("a"), topic("b")]);
    let names = |names: &[&str]| DeleteTopicsRequest {
        topic_names: names.iter().map(|name| (*name).into()).collect(),
        timeout_ms: 10_000,
        ..Default::default()
    };
    let response = client.call(5, &names(&["a", "missing", "b", "b"]));
    let codes: Vec<_> = response.responses.iter().map(|row| (row.name.as_deref().unwrap(), row.error_code)).collect();
    let missing = ("missing", ErrorCode::UnknownTopicOrPartition);
    assert_eq!(codes, [("a", ErrorCode::None), missing, ("b", ErrorCode::InvalidRequest)]);
    assert!(!exists(&mut client, "a") && exists(&mut client, "b"));

    let by_id = |id| DeleteTopicState { name: None, topic_id: id };
    let topics = vec![by_id(TOPIC_ID), by_id(TopicId([9; 16])), by_id(TopicId::ZERO)];
    let response = client.call(6, &DeleteTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() });
    let rows: Vec<_> = response.responses.iter().map(|row| (row.name.as_deref(), row.error_code)).collect();
    let unknown = (None, ErrorCode::UnknownTopicId);
    assert_eq!(rows, [(Some(TOPIC), ErrorCode::None), unknown, (None, ErrorCode::InvalidRequest)]);
    assert_eq!(response.responses[0].topic_id, TOPIC_ID);
    assert!(!exists(&mut client, TOPIC));

    let broker = Broker::with(Options { settings: vec![("delete.topic.enable", "false")], ..Options::default() });
    let response = broker.client().call(5, &names(&[TOPIC]));
    assert_eq!(response.responses[0].error_code, ErrorCode::TopicDeletionDisabled);
}

#[test]
fn partitions_are_added() {
    let broker = Broker::start();
    let mut client = broker.client();
    let grow = |name: &str, count, assigned: Option<&[i32]>| CreatePartitionsTopic {
        name: name.into(),
        count,
        assignments: assigned
            .map(|ids| ids.iter().map(|id| CreatePartitionsAssignment { broker_ids: vec![BrokerId(*id)] }).collect()),
    };
    let mut code = |topics: Vec<CreatePartitionsTopic>| {
        let request = CreatePartitionsRequest { topics, timeout_ms: 10_000, validate_only: false };
        client.call(3, &request).results.iter().map(|row| row.error_code).collect::<Vec<_>>()
    };
    assert_eq!(code(vec![grow(TOPIC, 4, None)]), [ErrorCode::InvalidPartitions]);
    assert_eq!(code(vec![grow(TOPIC, -1, None)]), [ErrorCode::InvalidPartitions]);
    assert_eq!(code(vec![grow("missing", 4, None)]), [ErrorCode::UnknownTopicOrPartition]);
    assert_eq!(code(vec![grow(TOPIC, 5, Some(&[1, 2]))]), [ErrorCode::InvalidReplicaAssignment]);
    assert_eq!(code(vec![grow(TOPIC, 5, Some(&[77]))]), [ErrorCode::InvalidReplicaAssignment]);
    assert_eq!(code(vec![grow(TOPIC, 6, None), grow(TOPIC, 7, None)]), [ErrorCode::InvalidRequest]);
    let nowhere = CreatePartitionsTopic {
        assignments: Some(vec![CreatePartitionsAssignment { broker_ids: vec![] }]),
        ..grow(TOPIC, 5, None)
    };
    assert_eq!(code(vec![nowhere]), [ErrorCode::InvalidReplicaAssignment]);
    assert_eq!(code(vec![grow(TOPIC, 6, Some(&[1, 2]))]), [ErrorCode::None]);
    assert_eq!(broker.view.borrow().topic(TOPIC).unwrap().partitions.len(), 6);
}

const TOPIC_TYPE: i8 = 2;
const BROKER_TYPE: i8 = 4;

fn describe(client: &mut Client, version: i16, kind: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
    };
    let request =
        DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, include_documentation: true };
    client.call(version, &request).results.remove(0)
}

/// D46.
#[test]
fn configurations_are_described_in_full() {
    let broker = Broker::with(Options { settings: vec![("log.retention.ms", "1234")], ..Options::default() });
    let mut client = broker.client();
    for version in 1..=4 {
        let topic = describe(&mut client, version, TOPIC_TYPE, TOPIC, None);
        assert_eq!(topic.error_code, ErrorCode::None);
        assert!(topic.configs.len() > 20);
        let find = |name: &str| topic.configs.iter().find(|config| &*config.name == name).unwrap();
        let policy = find("cleanup.policy");
        assert_eq!((policy.value.as_deref(), policy.config_source, policy.read_only), (Some("delete"), 5, false));
        assert!(policy.synonyms.iter().any(|synonym| &*synonym.name == "log.cleanup.policy"));
        assert_eq!(policy.config_type, if version >= 3 { 7 } else { 0 });
        assert_eq!(policy.documentation.is_some(), version >= 3);
        let retention = find("retention.ms");
        assert_eq!((retention.value.as_deref(), retention.config_source), (Some("1234"), 4));

        let broker = describe(&mut client, version, BROKER_TYPE, "1", None);
        assert_eq!(broker.error_code, ErrorCode::None);
        let retention = broker.configs.iter().find(|config| &*config.name == "log.retention.ms").unwrap();
        assert_eq!((retention.value.as_deref(), retention.read_only), (Some("1234"), true));
    }
    let one = describe(&mut client, 4, TOPIC_TYPE, TOPIC, Some(&["segment.bytes", "no.such.key"]));
    assert_eq!(one.configs.iter().map(|config| &*config.name).collect::<Vec<_>>(), ["segment.bytes"]);
    assert!(describe(&mut client, 4, TOPIC_TYPE, TOPIC, Some(&[])).configs.len() > 20, "none named: all");
    assert!(describe(&mut client, 4, BROKER_TYPE, "", None).configs.is_empty());
    for (kind, name, code) in [
        (TOPIC_TYPE, "missing", ErrorCode::UnknownTopicOrPartition),
        (TOPIC_TYPE, "a b", ErrorCode::InvalidTopicException),
        (BROKER_TYPE, "2", ErrorCode::InvalidRequest),
        (BROKER_TYPE, "one", ErrorCode::InvalidRequest),
        (8, "1", ErrorCode::InvalidRequest),
    ] {
        let refused = describe(&mut client, 4, kind, name, None);
        assert_eq!((refused.error_code, refused.error_message.is_some()), (code, true), "{kind} {name}");
    }
}

fn value(client: &mut Client, key: &str) -> Option<String> {
    describe(client, 4, TOPIC_TYPE, TOPIC, Some(&[key])).configs[0].value.as_deref().map(str::to_owned)
}

#[test]
fn topics_are_configured_anew_or_bit_by_bit() {
    let broker = Broker::start();
    let mut client = broker.client();
    let increment =
        |kind: i8, name: &str, changes: &[(&str, i8, Option<&str>)]| incremental_alter_configs::AlterConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configs: changes
                .iter()
                .map(|(key, operation, value)| incremental_alter_configs::AlterableConfig {
                    name: (*key).into(),
                    config_operation: *operation,
                    value: value.map(KafkaString::from),
                })
                .collect(),
        };
    let mut alter = |resources, validate_only| {
        let request = IncrementalAlterConfigsRequest { resources, validate_only };
        client.call(1, &request).responses.iter().map(|row| row.error_code).collect::<Vec<_>>()
    };
    let set_both =
        increment(TOPIC_TYPE, TOPIC, &[("retention.ms", 0, Some("5")), ("cleanup.policy", 2, Some("compact"))]);
    assert_eq!(alter(vec![set_both.clone()], true), [ErrorCode::None]);
    assert_eq!(alter(vec![set_both.clone(), set_both.clone()], false), [ErrorCode::InvalidRequest; 2]);
    let one = |kind, name, change| alter_one(&mut alter, increment(kind, name, &[change]));
    let mut one = one;
    assert_eq!(one(TOPIC_TYPE, TOPIC, ("retention.ms", 0, Some("soon"))), ErrorCode::InvalidConfig);
    assert_eq!(one(TOPIC_TYPE, TOPIC, ("retention.ms", 0, None)), ErrorCode::InvalidRequest);
    assert_eq!(one(TOPIC_TYPE, TOPIC, ("retention.ms", 9, Some("1"))), ErrorCode::InvalidRequest);
    assert_eq!(one(TOPIC_TYPE, "missing", ("retention.ms", 1, None)), ErrorCode::UnknownTopicOrPartition);
    assert_eq!(one(BROKER_TYPE, "1", ("log.retention.ms", 0, Some("1"))), ErrorCode::InvalidRequest);
    assert_eq!(one(8, "1", ("kafka", 0, Some("DEBUG"))), ErrorCode::InvalidRequest);
    assert_eq!(alter(vec![set_both], false), [ErrorCode::None]);
    assert_eq!(value(&mut client, "retention.ms").as_deref(), Some("5"));
    assert_eq!(value(&mut client, "cleanup.policy").as_deref(), Some("delete,compact"));

    let replace = alter_configs::AlterConfigsResource {
        resource_type: TOPIC_TYPE,
        resource_name: TOPIC.into(),
        configs: vec![alter_configs::AlterableConfig { name: "retention.ms".into(), value: Some("6".into()) }],
    };
    let request = AlterConfigsRequest { resources: vec![replace], validate_only: false };
    assert_eq!(client.call(2, &request).responses[0].error_code, ErrorCode::None);
    assert_eq!(value(&mut client, "retention.ms").as_deref(), Some("6"));
    assert_eq!(value(&mut client, "cleanup.policy").as_deref(), Some("delete"), "it is not named, so it is reset");
    let config =
        |value: &str| alter_configs::AlterableConfig { name: "retention.ms".into(), value: Some(value.into()) };
    let twice = alter_configs::AlterConfigsResource {
        resource_type: TOPIC_TYPE,
        resource_name: TOPIC.into(),
        configs: vec![config("7"), config("8")],
    };
    let request = AlterConfigsRequest { resources: vec![twice], validate_only: false };
    assert_eq!(client.call(2, &request).responses[0].error_code, ErrorCode::InvalidRequest);
    assert_eq!(value(&mut client, "retention.ms").as_deref(), Some("6"));
}

type Alter<'a> = dyn FnMut(Vec<incremental_alter_configs::AlterConfigsResource>, bool) -> Vec<ErrorCode> + 'a;

fn alter_one(alter: &mut Alter<'_>, resource: incremental_alter_configs::AlterConfigsResource) -> ErrorCode {
    alter(vec![resource], false)[0]
}
