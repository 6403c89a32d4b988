//! FindCoordinator 0–6: which broker coordinates a group or a transactional id, and where it is reached.
//!
//! One key up to version 3, several from 4 on. Group ids and transactional ids fall into the same coordinator slots. The
//! address is that of the listener which the request came through.
//!
//! Differences from Kafka: groups never wait for an internal topic to be created. Share groups (version 6, key type 2) do
//! not exist and are answered INVALID_REQUEST.

use kaas_proto::kafka::messages::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{BrokerId, SlotId};

use crate::cluster::{self, Endpoint};
use crate::context::{Call, Handle};
use crate::leaders::Refusal;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// The first version with several keys.
const BATCHES: i16 = 4;

impl Handle for FindCoordinatorRequest {
    async fn handle(self, call: &Call) -> FindCoordinatorResponse {
        if call.version >= BATCHES {
            let find = |key: KafkaString| coordinator(find(&key, self.key_type, call), key);
            let coordinators = self.coordinator_keys.into_iter().map(find).collect();
            return FindCoordinatorResponse { coordinators, ..Default::default() };
        }
        let found = coordinator(find(&self.key, self.key_type, call), self.key);
        FindCoordinatorResponse {
            error_code: found.error_code,
            error_message: found.error_message,
            node_id: found.node_id,
            host: found.host,
            port: found.port,
            ..Default::default()
        }
    }
}

fn find(key: &str, key_type: i8, call: &Call) -> Result<Endpoint, Refusal> {
    if !matches!(key_type, GROUP | TRANSACTION) {
        let message = format!("there are no coordinators of key type {key_type}, only of groups and transactions");
        return Err(Refusal::new(ErrorCode::InvalidRequest, message));
    }
    let view = call.view();
    let leader = view.slot(SlotId::of(key)).leader;
    let endpoint = leader.and_then(|leader| cluster::alive_endpoint(&view, leader, &call.client));
    endpoint.ok_or_else(|| {
        Refusal::new(ErrorCode::CoordinatorNotAvailable, "nobody coordinates it right now, or not on this listener")
    })
}

fn coordinator(found: Result<Endpoint, Refusal>, key: KafkaString) -> Coordinator {
    match found {
        Ok(at) => Coordinator { key, node_id: at.id, host: at.host, port: at.port, ..Default::default() },
        Err(refusal) => Coordinator {
            key,
            node_id: BrokerId(-1),
            port: -1,
            error_code: refusal.code,
            error_message: Some(refusal.message.into()),
            ..Default::default()
        },
    }
}
