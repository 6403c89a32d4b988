//! Produce 3–13: checks batches, hands them to the shards that lead their partitions, and waits.
//!
//! By topic name up to version 12, by id in 13. One batch of magic 2 per partition; zstd from version 7 on; log start
//! offsets from 5, record errors from 8, who leads instead from 10.
//!
//! [`begin`] is the ordered stage: it runs when the request is read, so what one connection sends for a partition is
//! appended in the order in which it was sent, however many requests overlap. If a shard's queue stays full for
//! [`Limits::queue_wait`](crate::limits::Limits::queue_wait), the batches are answered REQUEST_TIMED_OUT and the
//! connection is closed behind the answer: what the client had already sent after them must not overtake them.
//!
//! `acks=0` is answered with nothing, and an error with the end of the connection. `acks=1` means what `acks=all` means:
//! on stable storage, there being no replicas to wait for; only the request's timeout is for `acks=all` alone.
//!
//! The connection's shard checks all of a batch, its records too, and lets others have their turn meanwhile: what no consumer could
//! read is INVALID_RECORD. A timeout below a second counts as one: it is meant for replicas.
//!
//! Topics with the name of one of Kafka's own are INVALID_TOPIC_EXCEPTION, unless the client id is `__admin_client`.
//!
//! Of an idempotent producer a partition remembers the last five batches. One that has the first and the last sequence number of
//! one of them is answered as that was; any other that does not go on where the last one ended is
//! OUT_OF_ORDER_SEQUENCE_NUMBER. Beyond 16,384 producers in a partition it forgets the one that was silent for longest
//! (`kaas_partition_producers_displaced_total`), whose next batch may then begin anywhere.
//!
//! Differences from Kafka: versions 0 to 2, which are advertised but gone, are answered UNSUPPORTED_VERSION per partition
//! instead of with a closed connection. Error messages are given for every error. Transactional batches are refused with
//! INVALID_TXN_STATE: there are no transactions yet, and no client gets a transactional producer id.

use std::time::Duration;

use bytes::Bytes;
use kaas_core::partition::error::AppendError;
use kaas_core::shard::operation::{Appended, Produce, ProduceBatch, RequiredAcks, ShardOperation};
use kaas_proto::control::PartitionKey;
use kaas_proto::kafka::messages::produce::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceData, PartitionProduceResponse,
    ProduceRequest, ProduceResponse, TopicProduceResponse,
};
use kaas_proto::kafka::wire::{Reader, Wire};
use kaas_proto::kafka::{ErrorCode, Frame, KafkaString, Records, RequestFrame, RequestHeader};
use kaas_proto::record::batch::{Compression, RecordBatchView};
use kaas_proto::record::{RecordError, Summarizing, Summary};
use kaas_proto::types::{Offset, PartitionIndex, TopicId};
use tokio::sync::oneshot;

use crate::close_reason::CloseReason;
use crate::cluster::{self, Elsewhere, Leader, TopicRef};
use crate::context::Call;
use crate::deadline::Deadline;
use crate::error_map::ErrorCodeOf;
use crate::in_flight::{Reply, ReplyFuture};
use crate::leaders::Refusal;
use crate::limits::PRODUCE_TIMEOUT_MAX;

/// The first version that names topics by id.
const TOPIC_IDS: i16 = 13;
/// The first version whose clients know zstd (KIP-110).
const ZSTD: i16 = 7;
/// The first version that is served; those below are advertised all the same.
const FIRST_SERVED: i16 = 3;

/// The client id that may write to internal topics: that of Kafka's own tools. (It guards against mistakes, not against
/// ill will.)
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// Bytes of records that are gone over before others have their turn.
const SUMMARIZED_AT_ONCE_BYTES: u64 = 256 << 10;

/// What a request's timeout is at least: it is meant for replicas, and in Kafka the leader's own write never counts.
const PRODUCE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What became of one batch.
type Outcome = Result<Appended, Refused>;

#[derive(Clone, Debug)]
struct Refused {
    code: ErrorCode,
    message: String,
    /// The record at fault, if it is a single one.
    record: Option<i32>,
    leader: Option<Leader>,
}

impl Refused {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), record: None, leader: None }
    }

    /// The shard ended before it answered: whether the batch is there is not known.
    fn shard_ended() -> Self {
        Self::new(ErrorCode::NotLeaderOrFollower, "the broker is stopping")
    }
}

impl From<Elsewhere> for Refused {
    fn from(elsewhere: Elsewhere) -> Self {
        let Refusal { code, message } = elsewhere.into();
        Self { leader: elsewhere.leader, ..Self::new(code, message) }
    }
}

impl From<AppendError> for Refused {
    fn from(error: AppendError) -> Self {
        let record = match error {
            AppendError::MissingKey { index } => Some(index),
            _ => None,
        };
        Self { record, ..Self::new(error.code(), error.to_string()) }
    }
}

/// Appends what may be appended, in order, and leaves the waiting to the future that is returned. With a reason, nothing
/// more may be read of the connection.
pub(crate) async fn begin(
    request: ProduceRequest,
    call: Call,
    frame: RequestFrame,
) -> (ReplyFuture, Option<CloseReason>) {
    let acks = required_acks(request.acks);
    let deadline = Deadline::after(match acks {
        Ok(RequiredAcks::All) => {
            Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).max(PRODUCE_TIMEOUT_MIN)
        }
        _ => PRODUCE_TIMEOUT_MAX,
    });
    let (mut topics, written) = check(request, acks.as_ref().err(), &call);
    let mut batches = Vec::with_capacity(written.len());
    for (place, partition, bytes) in written {
        match summarize(&bytes).await {
            Ok(records) => batches.push((place, ProduceBatch { partition, batch: bytes, records })),
            Err(error) => place.set(&mut topics, Err(Refused::new(ErrorCode::InvalidRecord, error.to_string()))),
        }
    }

    let acks = acks.unwrap_or(RequiredAcks::All);
    let room = Deadline::after(call.shard.limits.queue_wait);
    let (mut answers, mut end) = (Vec::new(), None);
    for share in call.shard.router.split(batches, |(_, batch)| batch.partition) {
        let (places, batches): (Vec<Place>, Vec<ProduceBatch>) = share.items.into_iter().unzip();
        let (reply, answer) = oneshot::channel();
        let operation = ShardOperation::Produce(Produce { acks, batches, reply });
        if call.shard.router.submit_within(room, share.shard, operation).await.is_ok() {
            answers.push((places, answer));
            continue;
        }
        end = Some(CloseReason::QueueFull);
        for place in places {
            let refused = Refused::new(ErrorCode::RequestTimedOut, "the shard's queue was full for too long");
            place.set(&mut topics, Err(refused));
        }
    }

    let close = end.clone();
    let reply = async move {
        for (places, answer) in answers {
            let outcomes = outcomes(places.len(), answer, deadline).await;
            for (place, outcome) in places.into_iter().zip(outcomes) {
                place.set(&mut topics, outcome);
            }
        }
        if acks == RequiredAcks::None {
            let failure = topics.iter().find_map(Topic::failure).map(CloseReason::UnacknowledgedFailure);
            return Reply { close: failure.or(close), ..Reply::default() };
        }
        let frame = frame.respond(&response(topics, &call));
        Reply { frame: Some(frame), close, ..Reply::default() }
    };
    (Box::pin(reply), end)
}

fn required_acks(acks: i16) -> Result<RequiredAcks, Refused> {
    match acks {
        -1 => Ok(RequiredAcks::All),
        0 => Ok(RequiredAcks::None),
        1 => Ok(RequiredAcks::Leader),
        other => Err(Refused::new(ErrorCode::InvalidRequiredAcks, format!("acks can be -1, 0 or 1, not {other}"))),
    }
}

/// One topic of the request, and what became of its batches.
#[derive(Debug)]
struct Topic {
    name: KafkaString,
    id: TopicId,
    partitions: Vec<(PartitionIndex, Outcome)>,
}

impl Topic {
    /// The first batch that was not appended, in words.
    fn failure(&self) -> Option<String> {
        self.partitions.iter().find_map(|(index, outcome)| {
            let refused = outcome.as_ref().err()?;
            let topic = if self.name.is_empty() { self.id.to_string() } else { self.name.to_string() };
            Some(format!("{topic}-{index}: {}, {}", refused.code.name(), refused.message))
        })
    }
}

/// Where a batch stands in the request.
#[derive(Clone, Copy, Debug)]
struct Place {
    topic: usize,
    partition: usize,
}

impl Place {
    fn set(self, topics: &mut [Topic], outcome: Outcome) {
        topics[self.topic].partitions[self.partition].1 = outcome;
    }
}

/// Goes over the records of a batch, and lets others have their turn now and then: compression may hide many.
async fn summarize(bytes: &Bytes) -> Result<Summary, RecordError> {
    let mut summarizing = Summarizing::new(RecordBatchView::read(bytes)?)?;
    loop {
        if let Some(summary) = summarizing.go_on(SUMMARIZED_AT_ONCE_BYTES)? {
            return Ok(summary);
        }
        futures_lite::future::yield_now().await;
    }
}

/// Sorts out what is refused at once; the records of the rest are to be looked at.
fn check(
    request: ProduceRequest,
    refuse_all: Option<&Refused>,
    call: &Call,
) -> (Vec<Topic>, Vec<(Place, PartitionKey, Bytes)>) {
    let (view, version) = (call.view(), call.version);
    let is_admin = call.client_id.as_deref() == Some(ADMIN_CLIENT_ID);
    let mut batches = Vec::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for data in request.topic_data {
        let topic_ref = TopicRef::of(version, TOPIC_IDS, &data.name, data.topic_id);
        let found = topic_ref.find(&view);
        let mut partitions = Vec::with_capacity(data.partition_data.len());
        for PartitionProduceData { index, records } in data.partition_data {
            let checked = match (refuse_all, found) {
                (Some(refused), _) => Err(refused.clone()),
                (None, Err(code)) => Err(Elsewhere::from(code).into()),
                (None, Ok(topic)) if topic.is_internal() && !is_admin => {
                    Err(Refused::new(ErrorCode::InvalidTopicException, "internal topics are not for producers"))
                }
                (None, Ok(topic)) => cluster::led_here(&view, topic, index)
                    .map_err(Refused::from)
                    .and_then(|partition| Ok((partition, check_batch(records, version)?))),
            };
            let place = Place { topic: topics.len(), partition: partitions.len() };
            let outcome = checked.map(|(partition, bytes)| batches.push((place, partition, bytes)));
            partitions.push((index, Err(outcome.err().unwrap_or_else(Refused::shard_ended))));
        }
        topics.push(Topic { name: data.name, id: data.topic_id, partitions });
    }
    (topics, batches)
}

fn check_batch(records: Records, version: i16) -> Result<Bytes, Refused> {
    let bytes = records.into_bytes();
    let batch =
        RecordBatchView::read_produced(&bytes).map_err(|error| Refused::new(error.error_code(), error.to_string()))?;
    if version < ZSTD && batch.compression() == Ok(Compression::Zstd) {
        let message = format!("zstd needs Produce {ZSTD} or later, this is {version}");
        return Err(Refused::new(ErrorCode::UnsupportedCompressionType, message));
    }
    if batch.is_transactional() {
        return Err(Refused::new(ErrorCode::InvalidTxnState, "kaas has no transactions yet"));
    }
    Ok(bytes)
}

async fn outcomes(
    count: usize,
    answer: oneshot::Receiver<Vec<Result<Appended, AppendError>>>,
    deadline: Deadline,
) -> Vec<Outcome> {
    let refused = match deadline.cut(answer).await {
        Some(Ok(rows)) => return rows.into_iter().map(|row| row.map_err(Refused::from)).collect(),
        Some(Err(_)) => Refused::shard_ended(),
        None => Refused::new(ErrorCode::RequestTimedOut, "the write takes longer than the request's timeout"),
    };
    vec![Err(refused); count]
}

fn response(topics: Vec<Topic>, call: &Call) -> ProduceResponse {
    let mut leaders = Vec::new();
    let mut responses = Vec::with_capacity(topics.len());
    for Topic { name, id, partitions } in topics {
        let rows = partitions.into_iter().map(|(index, outcome)| {
            let row = match outcome {
                Ok(appended) => appended_row(appended),
                Err(refused) => {
                    leaders.extend(refused.leader.map(|leader| leader.id));
                    refused_row(refused)
                }
            };
            PartitionProduceResponse { index, ..row }
        });
        responses.push(TopicProduceResponse { name, topic_id: id, partition_responses: rows.collect() });
    }
    let node_endpoints = cluster::endpoints_of(&call.view(), leaders, &call.client).into_iter();
    let node_endpoints =
        node_endpoints.map(|at| NodeEndpoint { node_id: at.id, host: at.host, port: at.port, rack: at.rack }).collect();
    ProduceResponse { responses, node_endpoints, ..Default::default() }
}

fn appended_row(Appended { base_offset, log_append_time, log_start_offset }: Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        base_offset,
        log_append_time_ms: log_append_time,
        log_start_offset,
        ..Default::default()
    }
}

fn refused_row(Refused { code, message, record, leader }: Refused) -> PartitionProduceResponse {
    let message = KafkaString::from(message);
    let error_of =
        |batch_index| BatchIndexAndErrorMessage { batch_index, batch_index_error_message: Some(message.clone()) };
    let at = |leader: Leader| LeaderIdAndEpoch { leader_id: leader.id, leader_epoch: leader.epoch };
    PartitionProduceResponse {
        error_code: code,
        base_offset: Offset(-1),
        record_errors: record.map(error_of).into_iter().collect(),
        current_leader: leader.map(at).unwrap_or_default(),
        error_message: Some(message),
        ..Default::default()
    }
}

/// The answer to a version below those that are served: UNSUPPORTED_VERSION for each partition, in that version.
/// `None`: the request can't be read, or wants no answer.
pub(crate) fn refuse_version(frame: Bytes, version: i16, correlation_id: i32) -> Option<Frame> {
    if !(0..FIRST_SERVED).contains(&version) {
        return None;
    }
    let mut reader = Reader::new(frame, version, false);
    let mut header = RequestHeader::read_fixed(&mut reader).ok()?;
    header.read_rest(&mut reader, false).ok()?;
    let request = ProduceRequest::read(&mut reader, false).ok()?;
    let refused = Refused::new(ErrorCode::UnsupportedVersion, "this version of Produce is gone");
    let row =
        |data: PartitionProduceData| PartitionProduceResponse { index: data.index, ..refused_row(refused.clone()) };
    let responses = request.topic_data.into_iter().map(|topic| TopicProduceResponse {
        name: topic.name,
        partition_responses: topic.partition_data.into_iter().map(row).collect(),
        ..Default::default()
    });
    let response = ProduceResponse { responses: responses.collect(), ..Default::default() };
    (request.acks != 0).then(|| Frame::response_in_removed_version(version, correlation_id, &response))
}
