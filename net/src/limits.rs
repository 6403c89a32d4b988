//! Every bound of the network side, by name. Units are in the names; counters for reaching them are in
//! [`crate::metrics`].

use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;

/// A frame up to this size may arrive before its memory is reserved, so that an announced length alone costs nothing.
pub(crate) const UNRESERVED_FRAME_BYTES: usize = 16 * 1024;
/// What ordinary producers send at most: one batch of `max.message.bytes`, and a little more.
pub(crate) const MEDIUM_FRAME_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of requests up to [`UNRESERVED_FRAME_BYTES`], per shard.
pub(crate) const SMALL_REQUESTS_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of requests up to [`MEDIUM_FRAME_BYTES`], per shard.
pub(crate) const MEDIUM_REQUESTS_BYTES: usize = 128 * 1024 * 1024;
/// What one element of an array of a request is reckoned to take while the request is worked on.
pub(crate) const WORKING_BYTES_PER_ELEMENT: usize = 256;
/// Memory of the requests that are worked on, beyond their frames, per shard. Frames up to [`UNRESERVED_FRAME_BYTES`] hold
/// so few elements that they are not counted.
pub(crate) const WORKING_BYTES: usize = 256 * 1024 * 1024;
/// How much one `recv` takes from a socket whose next frame is small or unknown. One such buffer per shard.
pub(crate) const SCRATCH_BYTES: usize = 64 * 1024;
/// How much one `recv` takes of a large frame.
pub(crate) const READ_CHUNK_BYTES: usize = 256 * 1024;
/// The most that is allocated for a frame before any byte beyond [`UNRESERVED_FRAME_BYTES`] is there.
pub(crate) const FIRST_ALLOCATION_BYTES: usize = 1024 * 1024;
/// Responses that are ready are sent together up to this size.
pub(crate) const COALESCE_BYTES: usize = 64 * 1024;
/// How many parts of responses one `sendmsg` takes; the kernel's own limit is 1024.
pub(crate) const PARTS_PER_SEND: usize = 64;
/// A fetch gets this much even when the memory for responses is used up: it must get on.
pub(crate) const FETCH_FLOOR_BYTES: usize = 64 * 1024;
/// How many accepted connections may wait in the kernel, per listener and shard.
pub(crate) const ACCEPT_BACKLOG: i32 = 1024;
/// How long accepting rests after an error such as too many open files.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// While others wait for memory of requests, a connection that holds some and sends nothing for this time is closed.
pub(crate) const PRESSED_RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// While others wait for memory of responses, a client that holds some and reads nothing for this time is disconnected.
pub(crate) const PRESSED_SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How often connections are looked at for that.
pub(crate) const PRESSED_SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Topics that one metadata request creates at most; of the others the client hears that they are unknown, and asks again.
pub(crate) const AUTO_CREATED_TOPICS: usize = 1000;
/// How long a metadata request waits for the topic that it creates.
pub(crate) const AUTO_CREATE_WAIT: Duration = Duration::from_secs(2);
/// The longest that a client may make an administrative request wait, whatever it asks for.
pub(crate) const ADMIN_TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// The longest that a Produce request waits for its write, whatever it asks for.
pub(crate) const PRODUCE_TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// The longest that a Fetch request waits for records, whatever it asks for.
pub(crate) const FETCH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Partitions that all fetch sessions of a shard together remember.
pub(crate) const FETCH_SESSION_PARTITIONS: usize = 200_000;
/// A fetch session that was not used for so long makes room for a new one.
pub(crate) const FETCH_SESSION_IDLE: Duration = Duration::from_secs(120);

/// Bounds that the broker's configuration sets, or that tests make small. Shard-local copies are equal on all shards.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest request (`socket.request.max.bytes`); a longer one closes its connection.
    pub request_max_bytes: usize,
    /// A connection without requests is closed after this time (`connections.max.idle.ms`); `None`: never.
    pub connection_idle: Option<Duration>,
    /// A connection that stops in the middle of a request is closed after this time.
    pub receive_timeout: Duration,
    /// A client that reads nothing of its responses for this time is disconnected.
    pub send_timeout: Duration,
    /// Requests of one connection that are read but not answered. More are not read.
    pub connection_requests: usize,
    /// Bytes of one connection's requests that are read but not answered; one request may be longer.
    pub connection_request_bytes: usize,
    /// Bytes of requests above [`MEDIUM_FRAME_BYTES`], per shard.
    pub shard_request_bytes: usize,
    /// Bytes of fetched records that are not sent yet, per shard.
    pub shard_response_bytes: usize,
    /// Bytes of responses that are not sent yet, without fetched records and without responses up to
    /// [`COALESCE_BYTES`], per shard. One that finds no room waits; one longer than all of it goes alone.
    pub shard_reply_bytes: usize,
    /// Connections over all shards and listeners (`max.connections`).
    pub connections: usize,
    /// Connections for which there are open files; further ones are refused, whatever `max.connections` is.
    pub connection_files: usize,
    /// Connections from one address (`max.connections.per.ip`).
    pub connections_per_ip: usize,
    /// How long a Produce request waits for room in a shard's queue before it is answered REQUEST_TIMED_OUT.
    pub queue_wait: Duration,
    /// How long connections may take to answer what they have read when the broker stops.
    pub stop_grace: Duration,
}

impl Limits {
    /// The bounds under a configuration.
    #[must_use]
    pub fn of(config: &BrokerConfig) -> Self {
        let request_max_bytes = config.socket_request_max_bytes;
        Self {
            request_max_bytes,
            connection_idle: config.connections_max_idle,
            receive_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            connection_requests: 32,
            connection_request_bytes: 32 * 1024 * 1024,
            // One request of the greatest size must fit, or it would wait for ever.
            shard_request_bytes: request_max_bytes.max(128 * 1024 * 1024),
            shard_response_bytes: 256 * 1024 * 1024,
            shard_reply_bytes: 128 * 1024 * 1024,
            connections: config.max_connections,
            connection_files: usize::MAX,
            connections_per_ip: config.max_connections_per_ip,
            queue_wait: Duration::from_secs(10),
            stop_grace: Duration::from_secs(5),
        }
    }
}
