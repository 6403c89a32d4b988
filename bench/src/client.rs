//! A small blocking Kafka client: one connection, requests in order.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use kaas_proto::kafka::frame::{self, Frame};
use kaas_proto::kafka::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use kaas_proto::kafka::messages::delete_topics::DeleteTopicState;
use kaas_proto::kafka::messages::fetch::{FetchPartition, FetchTopic};
use kaas_proto::kafka::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_proto::kafka::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_proto::kafka::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, FetchResponse, InitProducerIdRequest, ListOffsetsRequest,
    MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
};
use kaas_proto::kafka::{ErrorCode, Request};
use kaas_proto::types::{Offset, PartitionIndex, ProducerEpoch, ProducerId};

use crate::broker::DEADLINE;

pub const PRODUCE_VERSION: i16 = 12;
pub const FETCH_VERSION: i16 = 12;
const METADATA_VERSION: i16 = 12;
const CREATE_TOPICS_VERSION: i16 = 7;
const DELETE_TOPICS_VERSION: i16 = 6;
const LIST_OFFSETS_VERSION: i16 = 7;
const INIT_PRODUCER_ID_VERSION: i16 = 4;

/// One connection. Answers come in the order of the requests.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    next_correlation_id: i32,
    next_answer: i32,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, DEADLINE).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(Self { stream, next_correlation_id: 0, next_answer: 0 })
    }

    /// The socket, for tests that misuse it.
    #[must_use]
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<()> {
        let frame = Frame::request(version, self.next_correlation_id, Some("kaas-bench".into()), request);
        self.next_correlation_id += 1;
        self.stream.write_all(&frame.parts().concat())?;
        Ok(())
    }

    /// Waits for the answer to the oldest request that has none yet.
    ///
    /// # Errors
    /// If the connection is gone, or the answer is not one.
    pub fn receive<R: Request>(&mut self, version: i16) -> Result<R::Response> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("no answer")?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length))?];
        self.stream.read_exact(&mut frame)?;
        let (correlation_id, response) = frame::decode_response::<R>(version, Bytes::from(frame))?;
        ensure!(correlation_id == self.next_answer, "answer {correlation_id} came, {} was due", self.next_answer);
        self.next_answer += 1;
        Ok(response)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// If the connection is gone, or the answer is not one.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> Result<R::Response> {
        self.send(version, request)?;
        self.receive::<R>(version)
    }

    /// Creates a topic and waits until all its partitions have a leader.
    ///
    /// # Errors
    /// What the broker answers.
    pub fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<()> {
        let configs = configs
            .iter()
            .map(|&(name, value)| CreatableTopicConfig { name: name.into(), value: Some(value.into()) })
            .collect();
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            configs,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 60_000, validate_only: false };
        let response = self.call(CREATE_TOPICS_VERSION, &request)?;
        let result = response.topics.first().context("a row for the topic")?;
        ensure!(
            result.error_code == ErrorCode::None,
            "create {name}: {:?} {:?}",
            result.error_code,
            result.error_message
        );
        self.wait_for_leaders(name, partitions)
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// What the broker answers.
    pub fn delete_topic(&mut self, name: &str) -> Result<()> {
        let topic = DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() };
        let request = DeleteTopicsRequest { topics: vec![topic], timeout_ms: 60_000, ..DeleteTopicsRequest::default() };
        let response = self.call(DELETE_TOPICS_VERSION, &request)?;
        let result = response.responses.first().context("a row for the topic")?;
        ensure!(result.error_code == ErrorCode::None, "delete {name}: {:?}", result.error_code);
        Ok(())
    }

    /// Waits until this many partitions of a topic have a leader.
    ///
    /// # Errors
    /// If they do not in time.
    pub fn wait_for_leaders(&mut self, topic: &str, partitions: i32) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < DEADLINE {
            let response = self.metadata(topic)?;
            let led = response.topics.iter().flat_map(|topic| &topic.partitions);
            if led.filter(|row| row.error_code == ErrorCode::None).count() == usize::try_from(partitions)? {
                return Ok(());
            }
        }
        bail!("{topic} has no leader after {DEADLINE:?}")
    }

    /// Metadata of one topic, which is not created.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn metadata(&mut self, topic: &str) -> Result<MetadataResponse> {
        let name = kaas_proto::kafka::messages::metadata::MetadataRequestTopic {
            name: Some(topic.into()),
            ..Default::default()
        };
        let request = MetadataRequest {
            topics: Some(vec![name]),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        self.call(METADATA_VERSION, &request)
    }

    /// The identity of a new idempotent producer.
    ///
    /// # Errors
    /// What the broker answers.
    pub fn init_producer_id(&mut self) -> Result<(ProducerId, ProducerEpoch)> {
        let response = self.call(INIT_PRODUCER_ID_VERSION, &InitProducerIdRequest::default())?;
        ensure!(response.error_code == ErrorCode::None, "init producer id: {:?}", response.error_code);
        Ok((response.producer_id, response.producer_epoch))
    }

    /// Waits for the first byte of an answer. `false`: there is none yet.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn wait_for_answer(&mut self, patience: Duration) -> Result<bool> {
        self.stream.set_read_timeout(Some(patience))?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(Some(DEADLINE))?;
        match peeked {
            Ok(0) => bail!("the connection was closed"),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends one batch and returns its base offset.
    ///
    /// # Errors
    /// What the broker answers.
    pub fn produce(&mut self, topic: &str, partition: i32, batch: Bytes) -> Result<Offset> {
        self.send(PRODUCE_VERSION, &produce_request(topic, partition, batch))?;
        let response = self.receive::<ProduceRequest>(PRODUCE_VERSION)?;
        base_offset(&response)
    }

    /// One fetch of one partition, without a session.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: Offset, max_wait_ms: i32) -> Result<FetchResponse> {
        self.call(FETCH_VERSION, &fetch_request(topic, partition, offset, max_wait_ms))
    }

    /// The log end offset that consumers may read to.
    ///
    /// # Errors
    /// What the broker answers.
    pub fn latest_offset(&mut self, topic: &str, partition: i32) -> Result<Offset> {
        let partition = ListOffsetsPartition {
            partition_index: PartitionIndex(partition),
            timestamp: kaas_proto::types::TimestampMs(-1),
            ..Default::default()
        };
        let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition] };
        let request = ListOffsetsRequest { topics: vec![topic], ..ListOffsetsRequest::default() };
        let response = self.call(LIST_OFFSETS_VERSION, &request)?;
        let row = response.topics.first().and_then(|topic| topic.partitions.first()).context("a row")?;
        ensure!(row.error_code == ErrorCode::None, "list offsets: {:?}", row.error_code);
        Ok(row.offset)
    }
}

/// A request that appends one batch with `acks=all`.
#[must_use]
pub fn produce_request(topic: &str, partition: i32, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: PartitionIndex(partition), records: batch.into() };
    let topic = TopicProduceData { name: topic.into(), partition_data: vec![data], ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..ProduceRequest::default() }
}

/// The base offset in the answer to [`produce_request`].
///
/// # Errors
/// What the broker answered instead.
pub fn base_offset(response: &ProduceResponse) -> Result<Offset> {
    let row = response.responses.first().and_then(|topic| topic.partition_responses.first()).context("a row")?;
    ensure!(row.error_code == ErrorCode::None, "produce: {:?} {:?}", row.error_code, row.error_message);
    Ok(row.base_offset)
}

/// A fetch of one partition that waits for one byte.
#[must_use]
pub fn fetch_request(topic: &str, partition: i32, offset: Offset, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition {
        partition: PartitionIndex(partition),
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
    FetchRequest { max_wait_ms, min_bytes: 1, max_bytes: 50 << 20, topics: vec![topic], ..FetchRequest::default() }
}
