//! DescribeLogDirs: how much space partitions take.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::PartitionIndex;

message! {
    /// Names partitions; null means all.
    pub message DescribeLogDirsRequest ["1-5", flexible "2+"] {
        topics ["0+", nullable "0+"]: Option<Vec<DescribableLogDirTopic>>,
    }

    /// Partitions of one topic.
    pub struct DescribableLogDirTopic {
        topic ["0+"]: KafkaString,
        partitions ["0+"]: Vec<PartitionIndex>,
    }
}

message! {
    /// Sizes by directory.
    pub message DescribeLogDirsResponse ["1-5", flexible "2+"] {
        throttle_time_ms ["0+"]: i32,
        error_code ["3+"]: ErrorCode,
        results ["0+"]: Vec<DescribeLogDirsResult>,
    }

    /// A directory.
    pub struct DescribeLogDirsResult {
        error_code ["0+"]: ErrorCode,
        log_dir ["0+"]: KafkaString,
        topics ["0+"]: Vec<DescribeLogDirsTopic>,
        total_bytes ["4+"]: i64 = -1,
        usable_bytes ["4+"]: i64 = -1,
        is_cordoned ["5+"]: bool,
    }

    /// A topic in it.
    pub struct DescribeLogDirsTopic {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<DescribeLogDirsPartition>,
    }

    /// A partition in it.
    pub struct DescribeLogDirsPartition {
        partition_index ["0+"]: PartitionIndex,
        partition_size ["0+"]: i64,
        offset_lag ["0+"]: i64,
        is_future_key ["0+"]: bool,
    }
}
