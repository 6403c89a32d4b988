//! DescribeCluster: the brokers, for admin clients.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::BrokerId;

message! {
    /// Asks for the cluster.
    pub message DescribeClusterRequest ["0-2", flexible "0+"] {
        include_cluster_authorized_operations ["0+"]: bool,
        endpoint_type ["1+"]: i8 = 1,
        include_fenced_brokers ["2+"]: bool,
    }
}

message! {
    /// The cluster.
    pub message DescribeClusterResponse ["0-2", flexible "0+"] {
        throttle_time_ms ["0+"]: i32,
        error_code ["0+"]: ErrorCode,
        error_message ["0+", nullable "0+"]: Option<KafkaString>,
        endpoint_type ["1+"]: i8 = 1,
        cluster_id ["0+"]: KafkaString,
        controller_id ["0+"]: BrokerId = BrokerId(-1),
        brokers ["0+"]: Vec<DescribeClusterBroker>,
        cluster_authorized_operations ["0+"]: i32 = i32::MIN,
    }

    /// A broker.
    pub struct DescribeClusterBroker {
        broker_id ["0+"]: BrokerId,
        host ["0+"]: KafkaString,
        port ["0+"]: i32,
        rack ["0+", nullable "0+"]: Option<KafkaString>,
        is_fenced ["2+"]: bool,
    }
}
