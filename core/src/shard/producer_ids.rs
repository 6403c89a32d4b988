//! Gives producer ids out: shard 0 does, from blocks that it claims on the volume.

use std::io;
use std::ops::Range;

use kaas_proto::layout::producer_ids_directory;
use kaas_proto::types::ProducerId;
use tokio::sync::mpsc;

use super::operation::AllocateProducerId;
use crate::env::{Env, OpenMode, Volume, VolumeFile};
use crate::format::producer_id_block::ProducerIdBlock;
use crate::partition::error::ProducerIdError;

/// How many requests may wait while a block is claimed; one more is answered with an error and counted as refused.
pub const ALLOCATION_QUEUE_LENGTH: usize = 4096;

/// Answers requests one after another, until the shard ends. Ids come from a block whose claim is durable; after a
/// restart the rest of the block is lost, of which there are enough.
pub async fn serve<E: Env>(env: E, mut requests: mpsc::Receiver<AllocateProducerId>) {
    let mut ids: Range<i64> = 0..0;
    while let Some(request) = requests.recv().await {
        let id = match ids.next() {
            Some(id) => Ok(ProducerId(id)),
            None => match claim_block(&env).await {
                Ok(block) => {
                    ids = block.ids();
                    Ok(ProducerId(ids.next().expect("a block is not empty")))
                }
                Err(error) => Err(ProducerIdError::Storage(error.to_string().into())),
            },
        };
        // The client may be gone; then the id is lost.
        request.reply.send(id).ok();
    }
}

/// Claims the block behind all that were claimed: exactly one broker can create its file. The very first one lies somewhere: if what was
/// claimed is lost, with the rest of the cluster's state, partitions still know producers by their ids, and would take the first
/// batches of another producer with the same id for repeated ones.
async fn claim_block(env: &impl Env) -> io::Result<ProducerIdBlock> {
    let volume = env.volume();
    let directory = producer_ids_directory();
    volume.create_directories(&directory).await?;
    let names = volume.list(&directory).await?;
    let last = names.iter().filter_map(|entry| ProducerIdBlock::parse(&entry.name)).max();
    let mut block = match last {
        Some(last) => last.next(),
        None => Some(ProducerIdBlock::somewhere(env.random_u64())),
    };
    while let Some(candidate) = block {
        match volume.open(&directory.join(candidate.file_name()), OpenMode::CreateNew).await {
            Ok(file) => {
                file.close().await?;
                volume.sync_directory(&directory).await?;
                return Ok(candidate);
            }
            // Another broker was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => block = candidate.next(),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("all producer ids are used up"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::collections::HashSet;

    use tokio::sync::oneshot;

    use super::*;
    use crate::env::TaskClass;
    use crate::env::memory::{MemoryEnv, MemoryVolume, Operation};

    fn server(env: &MemoryEnv) -> mpsc::Sender<AllocateProducerId> {
        let (sender, receiver) = mpsc::channel(ALLOCATION_QUEUE_LENGTH);
        env.spawn(TaskClass::Latency, serve(env.clone(), receiver));
        sender
    }

    async fn allocate(server: &mpsc::Sender<AllocateProducerId>) -> Result<ProducerId, ProducerIdError> {
        let (reply, answer) = oneshot::channel();
        server.send(AllocateProducerId { reply }).await.unwrap();
        answer.await.unwrap()
    }

    #[test]
    fn no_id_is_given_out_twice_by_two_brokers_or_after_a_restart() {
        let volume = MemoryVolume::default();
        let mut seen = HashSet::new();
        for _ in 0..2 {
            let env = MemoryEnv::virtual_time_on(volume.clone());
            env.run(async {
                let servers = [server(&env), server(&env)];
                for _ in 0..1_100 {
                    for server in &servers {
                        assert!(seen.insert(allocate(server).await.unwrap()));
                    }
                }
            });
        }
        assert_eq!(seen.len(), 4_400);
    }

    #[test]
    fn a_claim_that_fails_is_tried_again_for_the_next_request() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let server = server(&env);
            env.volume().fail_next(Operation::Open, io::ErrorKind::StorageFull);
            assert!(matches!(allocate(&server).await, Err(ProducerIdError::Storage(_))));
            assert!(allocate(&server).await.is_ok());
        });
    }

    #[test]
    fn ids_of_a_cluster_that_lost_its_state_are_not_those_of_before() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let (volume, directory) = (env.volume(), producer_ids_directory());
            let mut seen = HashSet::new();
            for _ in 0..3 {
                let server = server(&env);
                for _ in 0..1_100 {
                    assert!(seen.insert(allocate(&server).await.unwrap()));
                }
                for entry in volume.list(&directory).await.unwrap() {
                    volume.unlink(&directory.join(entry.name)).await.unwrap();
                }
            }
        });
    }
}
