//! The sets of operations that requests ask for with `include_…_authorized_operations`, as bits by Kafka's numbers of
//! them. Without access control a client may do everything that exists for a resource.

const READ: u8 = 3;
const WRITE: u8 = 4;
const CREATE: u8 = 5;
const DELETE: u8 = 6;
const ALTER: u8 = 7;
const DESCRIBE: u8 = 8;
const CLUSTER_ACTION: u8 = 9;
const DESCRIBE_CONFIGS: u8 = 10;
const ALTER_CONFIGS: u8 = 11;
const IDEMPOTENT_WRITE: u8 = 12;

const fn bits(operations: &[u8]) -> i32 {
    let (mut bits, mut position) = (0, 0);
    while position < operations.len() {
        bits |= 1 << operations[position];
        position += 1;
    }
    bits
}

/// Of a topic.
pub(crate) const TOPIC: i32 = bits(&[READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]);
/// Of the cluster.
pub(crate) const CLUSTER: i32 =
    bits(&[CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]);
/// Of a group.
pub(crate) const GROUP: i32 = bits(&[READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]);
