//! DescribeCluster 0–2: the brokers, for admin clients; fenced ones from version 2 on if they are asked for.
//!
//! Differences from Kafka: there is no separate controller quorum, so endpoint type 2 is MISMATCHED_ENDPOINT_TYPE.
//! Everything is authorized.

use kaas_proto::kafka::messages::describe_cluster::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::BrokerId;

use crate::authorized_operations;
use crate::cluster;
use crate::context::{Call, Handle};

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

impl Handle for DescribeClusterRequest {
    async fn handle(self, call: &Call) -> DescribeClusterResponse {
        let refused = |error_code, message: &'static str| DescribeClusterResponse {
            error_code,
            error_message: Some(KafkaString::from_static(message)),
            ..Default::default()
        };
        match self.endpoint_type {
            BROKERS => {}
            CONTROLLERS => return refused(ErrorCode::MismatchedEndpointType, "this is a broker, not a controller"),
            _ => return refused(ErrorCode::UnsupportedEndpointType, "endpoint type 1 is that of brokers"),
        }
        let view = call.view();
        let shown = view.brokers.iter().filter(|broker| !broker.fenced || self.include_fenced_brokers);
        let brokers = shown.filter_map(|broker| {
            let at = cluster::endpoint(&view, broker, &call.client)?;
            Some(DescribeClusterBroker {
                broker_id: at.id,
                host: at.host,
                port: at.port,
                rack: at.rack,
                is_fenced: broker.fenced,
            })
        });
        DescribeClusterResponse {
            cluster_id: KafkaString::from(&*view.cluster_id),
            controller_id: view.controller.unwrap_or(BrokerId(-1)),
            brokers: brokers.collect(),
            cluster_authorized_operations: if self.include_cluster_authorized_operations {
                authorized_operations::CLUSTER
            } else {
                i32::MIN
            },
            ..Default::default()
        }
    }
}
