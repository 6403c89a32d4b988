//! From a frame to the handler of its API, by the one table of APIs.

use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::for_each_api;
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::{ApiKey, DecodeError, Frame, FrameError, KafkaString, Message, RequestFrame};

use crate::close_reason::CloseReason;
use crate::context::{Call, Client, Handle, ShardContext};
use crate::handlers::{api_versions, produce};
use crate::in_flight::{Reply, ReplyFuture, RequestKind};
use crate::limits::COALESCE_BYTES;
use crate::memory::Lease;
use crate::metrics::Bound;

/// SaslHandshake and SaslAuthenticate.
const SASL_KEYS: [i16; 2] = [17, 36];

/// A request that was taken from its connection.
pub(crate) struct Begun {
    pub(crate) reply: ReplyFuture,
    /// `None`: nothing that we serve.
    pub(crate) request: Option<RequestKind>,
    /// Nothing more may be read of the connection.
    pub(crate) end: Option<CloseReason>,
}

/// Takes a request: carries out the ordered stage of Produce, which may wait for room in a shard's queue, and leaves all
/// else to the future that makes the reply.
pub(crate) async fn begin(frame: Bytes, memory: Lease, shard: &Rc<ShardContext>, client: &Rc<Client>) -> Begun {
    let frame = match RequestFrame::parse(frame.clone()) {
        Ok(frame) => frame,
        Err(error) => return refuse(error, frame),
    };
    let kind = RequestKind { api: frame.api, version: frame.version };
    // A copy: a slice would keep the frame for as long as the call goes on.
    let client_id = frame.client_id.as_deref().map(KafkaString::from);
    let call = Call::new(Rc::clone(shard), Rc::clone(client), frame.version, client_id, memory);
    let (reply, end) = by_api(call, frame).await;
    Begun { reply, request: Some(kind), end }
}

/// Whoever sends what we do not serve learns of it in a form that it can read, if there is one.
fn refuse(error: FrameError, frame: Bytes) -> Begun {
    let reason = match error {
        FrameError::Header(error) => CloseReason::Header(error),
        FrameError::UnknownApi { key, .. } if SASL_KEYS.contains(&key) => CloseReason::Sasl,
        FrameError::UnknownApi { key, version, .. } => CloseReason::UnknownApi { key, version },
        FrameError::UnsupportedVersion { api, version, correlation_id } => {
            let readable = match api.key {
                // Version 0 of the response is what every client can read; it then asks again (KIP-511).
                ApiKey::ApiVersions => Some(Frame::response(api, 0, correlation_id, &api_versions::unsupported())),
                ApiKey::Produce => produce::refuse_version(frame, version, correlation_id),
                _ => None,
            };
            if let Some(frame) = readable {
                let reply = Reply { frame: Some(frame), ..Reply::default() };
                return Begun { reply: Box::pin(async { reply }), request: None, end: None };
            }
            CloseReason::UnsupportedVersion { api, version }
        }
    };
    let (reply, end) = close(reason);
    Begun { reply, request: None, end }
}

fn unreadable(frame: &RequestFrame, error: DecodeError) -> CloseReason {
    CloseReason::Request { api: frame.api, version: frame.version, error }
}

macro_rules! by_key {
    (
        Produce = $produce:literal, ProduceRequest, ProduceResponse, $served:literal..=$last:literal, advertised $first:literal;
        $($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $advertised:literal;)*
    ) => {
        async fn by_api(call: Call, frame: RequestFrame) -> (ReplyFuture, Option<CloseReason>) {
            match frame.api.key {
                ApiKey::Produce => match frame.decode() {
                    Ok(request) => produce::begin(request, call, frame).await,
                    Err(error) => close(unreadable(&frame, error)),
                },
                $(ApiKey::$name => (Box::pin(answer::<$request>(call, frame)), None),)*
            }
        }
    };
}

for_each_api!(by_key);

/// Answers nothing and ends the connection behind what was read before.
fn close(reason: CloseReason) -> (ReplyFuture, Option<CloseReason>) {
    let reply = Reply { close: Some(reason.clone()), ..Reply::default() };
    (Box::pin(async { reply }), Some(reason))
}

async fn answer<R: Handle>(call: Call, mut frame: RequestFrame) -> Reply {
    call.reserve_working_memory(frame.body.len()).await;
    if may_be_large(frame.api.key) {
        call.shard.reply_turn().await;
    }
    match frame.decode_counted::<R>() {
        Ok((request, elements)) => {
            frame.release_body();
            call.shrink_working_memory(elements);
            let response = request.handle(&call).await;
            let lease = call.take_lease();
            let (frame, rest) = encode(&frame, &response, &lease, &call.shard).await;
            Reply { frame: Some(frame), lease, rest, close: None }
        }
        Err(error) => Reply { close: Some(unreadable(&frame, error)), ..Reply::default() },
    }
}

/// Encodes a response, and reserves the memory that it takes. While there is none only the response itself is kept,
/// in which long texts are parts of what the broker remembers anyway.
async fn encode<M: Message>(
    request: &RequestFrame,
    response: &M,
    records: &Lease,
    shard: &ShardContext,
) -> (Frame, Lease) {
    let frame = request.respond(response);
    let records = records.as_ref().map_or(0, |records| records.num_permits());
    let rest = frame.len().saturating_sub(records);
    if rest <= COALESCE_BYTES {
        return (frame, None);
    }
    if let Ok(lease) = shard.reply_memory.try_reserve(rest) {
        return (frame, lease);
    }
    drop(frame);
    shard.metrics.reached(Bound::ShardReplyBytes);
    shard.pressed.notify_one();
    let lease = shard.reply_memory.reserve(rest).await;
    (request.respond(response), lease)
}

/// What is not begun while others wait for memory of their replies: a short request can make a long response of it, and
/// nothing breaks if it takes a second.
fn may_be_large(key: ApiKey) -> bool {
    use ApiKey as K;
    matches!(
        key,
        K::Metadata
            | K::DescribeTopicPartitions
            | K::DescribeConfigs
            | K::DescribeGroups
            | K::ListGroups
            | K::OffsetFetch
            | K::DescribeLogDirs
            | K::DescribeProducers
    )
}
