//! DescribeConfigs 1–4: every configuration of a topic or of this broker, with type, source and synonyms. Documentation
//! from version 3 on.
//!
//! Differences from Kafka: broker configurations are set at start and read-only; the empty broker name, which stands for
//! cluster-wide dynamic defaults, has none. Loggers, client metrics and groups have no configurations here.

use kaas_proto::config::{ConfigEntry, ConfigSynonym};
use kaas_proto::kafka::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};

use crate::config_resource::{self, Resource};
use crate::context::{Call, Handle};
use crate::leaders::Refusal;

impl Handle for DescribeConfigsRequest {
    async fn handle(self, call: &Call) -> DescribeConfigsResponse {
        let results = self.resources.into_iter().map(|resource| {
            let described = describe(&resource, self.include_synonyms, self.include_documentation, call);
            let result = DescribeConfigsResult {
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
                ..Default::default()
            };
            match described {
                Ok(configs) => DescribeConfigsResult { configs, ..result },
                Err(refusal) => DescribeConfigsResult {
                    error_code: refusal.code,
                    error_message: Some(refusal.message.into()),
                    ..result
                },
            }
        });
        DescribeConfigsResponse { results: results.collect(), ..Default::default() }
    }
}

fn describe(
    resource: &DescribeConfigsResource,
    synonyms: bool,
    documentation: bool,
    call: &Call,
) -> Result<Vec<DescribeConfigsResourceResult>, Refusal> {
    let view = call.view();
    let config = &call.shard.config;
    let entries = match config_resource::find(resource.resource_type, &resource.resource_name, view.self_id)? {
        Resource::Topic(name) => {
            let missing = || Refusal::new(ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name}"));
            view.topic(name).ok_or_else(missing)?.config.entries(config)
        }
        Resource::Broker => config.entries(),
        Resource::AllBrokers => vec![],
    };
    // Naming none is asking for all, as in Kafka.
    let keys = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty());
    let wanted = |entry: &ConfigEntry| keys.is_none_or(|keys| keys.iter().any(|key| **key == *entry.definition.name));
    Ok(entries.into_iter().filter(wanted).map(|entry| result(entry, synonyms, documentation)).collect())
}

fn result(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult {
    let synonym = |synonym: ConfigSynonym| DescribeConfigsSynonym {
        name: KafkaString::from_static(synonym.name),
        value: synonym.value.map(KafkaString::from),
        source: synonym.source as i8,
    };
    let definition = entry.definition;
    DescribeConfigsResourceResult {
        name: KafkaString::from_static(definition.name),
        value: entry.value.map(KafkaString::from),
        read_only: entry.read_only,
        config_source: entry.source as i8,
        is_sensitive: false,
        synonyms: if synonyms { entry.synonyms.into_iter().map(synonym).collect() } else { vec![] },
        config_type: definition.kind as i8,
        documentation: documentation.then(|| KafkaString::from_static(definition.documentation)),
    }
}
