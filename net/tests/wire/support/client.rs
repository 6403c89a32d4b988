//! A Kafka client that sends exactly what it is told to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use kaas_proto::kafka::frame::decode_response;
use kaas_proto::kafka::messages::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use kaas_proto::kafka::messages::produce::{PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData};
use kaas_proto::kafka::wire::{Reader, Wire};
use kaas_proto::kafka::writer::Writer;
use kaas_proto::kafka::{ErrorCode, Frame, Records, Request};
use kaas_proto::types::{Offset, PartitionIndex};

use super::{ELSEWHERE_ID, PATIENCE, TOPIC, TOPIC_ID, batch};

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) client_id: &'static str,
    next_correlation_id: i32,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, client_id: "test", next_correlation_id: 1 }
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request without waiting; returns its correlation id.
    pub(crate) fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = Frame::request(version, correlation_id, Some(self.client_id.into()), request);
        self.send_raw(&frame.into_parts().concat());
        correlation_id
    }

    /// The next frame, without its length.
    pub(crate) fn receive_frame(&mut self) -> Bytes {
        self.try_receive_frame().unwrap()
    }

    pub(crate) fn try_receive_frame(&mut self) -> io::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut frame)?;
        Ok(frame.into())
    }

    /// The next response.
    pub(crate) fn receive<R: Request>(&mut self, version: i16, correlation_id: i32) -> R::Response {
        let (received, response) = decode_response::<R>(version, self.receive_frame()).unwrap();
        assert_eq!(received, correlation_id, "responses are in the order of the requests");
        response
    }

    pub(crate) fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let correlation_id = self.send(version, request);
        self.receive::<R>(version, correlation_id)
    }

    /// Whether the broker has closed the connection, without sending anything before.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        let mut rest = [0; 100];
        match self.stream.read(&mut rest) {
            Ok(0) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {}
            Ok(read) => panic!("the broker answered {:?}", &rest[..read]),
            Err(error) => panic!("the connection is still open: {error}"),
        }
    }
}

/// Produce to one partition, in any version that ever was.
impl Client {
    /// Sends one batch for partition 0.
    pub(crate) fn send_produce(&mut self, version: i16, acks: i16, topic: &str, records: &Bytes) -> i32 {
        self.send_produce_to(version, acks, topic, 0, records)
    }

    pub(crate) fn send_produce_to(
        &mut self,
        version: i16,
        acks: i16,
        topic: &str,
        partition: i32,
        records: &Bytes,
    ) -> i32 {
        let request = produce_request(acks, topic, partition, records);
        if version >= 3 {
            return self.send(version, &request);
        }
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let mut writer = Writer::new(version, false);
        writer.put(&[0, 0]);
        writer.put(&version.to_be_bytes());
        writer.put(&correlation_id.to_be_bytes());
        writer.put(&(-1_i16).to_be_bytes());
        request.write(&mut writer, false);
        let frame = writer.into_joined();
        self.send_raw(&u32::try_from(frame.len()).unwrap().to_be_bytes());
        self.send_raw(&frame);
        correlation_id
    }

    /// Code and base offset of the only partition.
    pub(crate) fn receive_produce(&mut self, version: i16, correlation_id: i32) -> (ErrorCode, i64) {
        let response = if version >= 3 {
            self.receive::<ProduceRequest>(version, correlation_id)
        } else {
            let frame = self.receive_frame();
            assert_eq!(frame[..4], correlation_id.to_be_bytes());
            let mut reader = Reader::new(frame.slice(4..), version, false);
            let response = ProduceResponse::read(&mut reader, false).unwrap();
            reader.finish().unwrap();
            response
        };
        let row = &response.responses[0].partition_responses[0];
        (row.error_code, row.base_offset.0)
    }

    /// Appends one batch to partition 0 and returns its offset.
    pub(crate) fn produce(&mut self, value: &str) -> i64 {
        let correlation_id = self.send_produce(9, -1, TOPIC, &batch(value));
        let (code, offset) = self.receive_produce(9, correlation_id);
        assert_eq!(code, ErrorCode::None);
        offset
    }
}

pub(crate) fn produce_request(acks: i16, topic: &str, partition: i32, records: &Bytes) -> ProduceRequest {
    let partition_data =
        vec![PartitionProduceData { index: PartitionIndex(partition), records: Records::from(records.clone()) }];
    let topic_id = if topic == TOPIC { TOPIC_ID } else { ELSEWHERE_ID };
    let topic_data = vec![TopicProduceData { name: topic.into(), topic_id, partition_data }];
    ProduceRequest { acks, timeout_ms: 30_000, topic_data, ..Default::default() }
}

/// Fetch of partitions of the test topic, with generous limits and without waiting.
pub(crate) fn fetch_request(wanted: &[(i32, i64)]) -> FetchRequest {
    let partition = |&(index, offset): &(i32, i64)| FetchPartition {
        partition: PartitionIndex(index),
        fetch_offset: Offset(offset),
        partition_max_bytes: 10 << 20,
        ..Default::default()
    };
    let partitions = wanted.iter().map(partition).collect();
    let topic = FetchTopic { topic: TOPIC.into(), topic_id: TOPIC_ID, partitions };
    let topics = if wanted.is_empty() { vec![] } else { vec![topic] };
    FetchRequest { max_bytes: 50 << 20, min_bytes: 1, topics, ..Default::default() }
}

impl Client {
    /// One partition of the test topic from an offset on, without waiting.
    pub(crate) fn fetch(&mut self, version: i16, partition: i32, offset: i64) -> PartitionData {
        let mut response = self.call(version, &fetch_request(&[(partition, offset)]));
        let row = response.responses.remove(0).partitions.remove(0);
        assert_eq!(row.error_code, ErrorCode::None);
        row
    }
}
