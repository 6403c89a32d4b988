//! Keeps the reserve: a file of zeros on the volume that goes when there is no room for taking over and deleting, and comes back
//! when there is ([`kaas_proto::reserve`]). Shard 0 does it, beside everything else; nobody waits for the file to be made. Where the cluster
//! directory is on a volume of its own, that has a reserve too.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use kaas_proto::layout::{
    CLUSTER_DIRECTORY, data_reserve_directory, data_reserve_file, reserve_directory, reserve_file,
};
use kaas_proto::reserve::{Reserve, ReserveState, is_full};
use tracing::{info, warn};

use crate::env::{AlignedBuffer, BLOCK_BYTES, Env, OpenMode, Volume, VolumeFile, VolumeSpace};
use crate::log::context::LogContext;
use crate::metrics::{Count, Counters};

/// What a reserve has on a small volume: a takeover takes two blocks, and the coordinators' slots alone are 50 of them.
pub const MIN_RESERVE_BYTES: u64 = 1 << 20;
/// What it has on a large one.
pub const MAX_RESERVE_BYTES: u64 = 16 << 20;
/// In between it is this share of the volume.
const SHARE: u64 = 1000;

/// How often it is looked whether there is room for the reserve while it is missing.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// What to do about a full volume with topics on it.
const MAKE_ROOM: &str = "delete topics or records, or enlarge the volume";

/// One write of zeros.
const CHUNK_BYTES: usize = 256 << 10;

/// What to do about a reserve that is not known to be in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is there, from before.
    Adopt {
        bytes: u64,
    },
    Make {
        bytes: u64,
    },
    /// There is no room for it.
    Wait {
        bytes: u64,
    },
}

/// Decides, given the size of what lies in its place, and the volume's, if that says.
///
/// Room is needed for as much again: otherwise the first records after it would find the volume full once more.
fn decide(found: Option<u64>, space: Option<VolumeSpace>) -> Step {
    let space = space.filter(|space| space.total_bytes > 0);
    let bytes = space.map_or(MIN_RESERVE_BYTES, |space| reserve_bytes(space.total_bytes));
    let available = space.map(|space| space.available_bytes.saturating_add(found.unwrap_or(0)));
    match available {
        _ if found == Some(bytes) => Step::Adopt { bytes },
        Some(available) if available < 2 * bytes => Step::Wait { bytes },
        // A volume that does not say is asked by trying.
        Some(_) | None => Step::Make { bytes },
    }
}

/// How large the reserve of a volume of this size is.
pub(crate) fn reserve_bytes(volume_bytes: u64) -> u64 {
    let share = (volume_bytes / SHARE).clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES);
    share - share % BLOCK_BYTES as u64
}

/// Who keeps the reserves of the broker: one per volume.
pub fn keepers<E: Env>(context: &Rc<LogContext<E>>) -> Vec<Keeper<E>> {
    let (broker, reserves, context) = (context.broker, context.reserves.clone(), || Rc::clone(context));
    let (directory, path) = (reserve_directory(), reserve_file(broker));
    if !reserves.are_apart() {
        let of_both = Place {
            volume: "volume",
            what: "records",
            advice: MAKE_ROOM,
            root: "",
            directory,
            path,
            gauge: |counters| &counters.reserve_bytes,
        };
        return vec![Keeper { reserve: reserves.data, place: of_both, context: context() }];
    }
    let of_cluster = Place {
        volume: "volume of the cluster directory",
        what: "committed offsets",
        advice: "enlarge it",
        root: CLUSTER_DIRECTORY,
        directory,
        path,
        gauge: |counters| &counters.cluster_reserve_bytes,
    };
    let of_data = Place {
        volume: "volume of the data directory",
        what: "records",
        advice: MAKE_ROOM,
        root: "",
        directory: data_reserve_directory(),
        path: data_reserve_file(broker),
        gauge: |counters| &counters.reserve_bytes,
    };
    vec![
        Keeper { reserve: reserves.cluster, place: of_cluster, context: context() },
        Keeper { reserve: reserves.data, place: of_data, context: context() },
    ]
}

/// Where a reserve is.
#[derive(Debug)]
struct Place {
    /// In words.
    volume: &'static str,
    /// What is refused without it, in words.
    what: &'static str,
    /// What to do when it is full, in words.
    advice: &'static str,
    /// A directory of the volume that is there.
    root: &'static str,
    directory: PathBuf,
    path: PathBuf,
    gauge: fn(&Counters) -> &Count,
}

/// Keeps one reserve.
#[derive(Debug)]
pub struct Keeper<E: Env> {
    reserve: Reserve,
    place: Place,
    context: Rc<LogContext<E>>,
}

impl<E: Env> Keeper<E> {
    /// For ever.
    pub async fn keep(self) {
        self.reserve.keep();
        loop {
            match self.reserve.state() {
                ReserveState::Wanted => self.give_up().await,
                ReserveState::InPlace => self.reserve.wanted().await,
                ReserveState::Unkept | ReserveState::Unknown | ReserveState::Missing => self.look().await,
            }
        }
    }

    /// Puts the reserve in place if there is room; if not, the next look is a while later.
    async fn look(&self) {
        let (env, reserve, place) = (&self.context.env, &self.reserve, &self.place);
        let volume = env.volume();
        let found = volume.size(&place.path).await.ok();
        let step = decide(found, volume.space(Path::new(place.root)).await.ok());
        let (bytes, outcome) = match step {
            Step::Adopt { bytes } => (bytes, Ok(())),
            Step::Make { bytes } => (bytes, self.make(bytes).await),
            Step::Wait { bytes } => (bytes, Err(io::ErrorKind::StorageFull.into())),
        };
        match outcome {
            Ok(()) => {
                if reserve.state() == ReserveState::Missing {
                    info!(
                        bytes,
                        "there is room on the {} again: the reserve is back, {} are accepted", place.volume, place.what
                    );
                }
                (place.gauge)(&self.context.counters).set(bytes);
                reserve.made();
                return;
            }
            Err(error) if is_full(&error) => {
                if reserve.state() == ReserveState::Unknown {
                    warn!(
                        bytes,
                        "the {} is full, there is no room for a reserve: {} are refused until there is; {}",
                        place.volume,
                        place.what,
                        place.advice
                    );
                    reserve.missed();
                }
            }
            Err(error) if self.context.may_log("reserve_failed") => {
                warn!(reserve = %self.place.path.display(), %error, "no reserve can be made; it is tried again");
            }
            Err(_) => {}
        }
        future::or(env.sleep(LOOK_INTERVAL), reserve.wanted()).await;
    }

    /// Writes real blocks: a hole would reserve nothing.
    async fn make(&self, bytes: u64) -> io::Result<()> {
        let (volume, directory) = (self.context.env.volume(), &self.place.directory);
        volume.create_directories(directory).await?;
        drop(volume.unlink(&self.place.path).await);
        let written = self.write_zeros(bytes).await;
        if written.is_err() {
            // Half of one is none, and others may need the room.
            drop(volume.unlink(&self.place.path).await);
            return written;
        }
        volume.sync_directory(directory).await
    }

    async fn write_zeros(&self, bytes: u64) -> io::Result<()> {
        let file = self.context.env.volume().open(&self.place.path, OpenMode::CreateNew).await?;
        let zeros = AlignedBuffer::zeroed(CHUNK_BYTES).freeze();
        let mut written = 0;
        // Who needs the room meanwhile does not wait until it is taken.
        while written < bytes && self.reserve.state() != ReserveState::Wanted {
            let length = usize::try_from(bytes - written).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES));
            file.write_at(written, zeros.slice(..length)).await?;
            written += length as u64;
        }
        file.close().await
    }

    async fn give_up(&self) {
        let volume = self.context.env.volume();
        match volume.unlink(&self.place.path).await {
            // The room is there for others once the name is gone for good.
            Ok(()) => drop(volume.sync_directory(&self.place.directory).await),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(reserve = %self.place.path.display(), %error, "the reserve can't be given up"),
        }
        (self.place.gauge)(&self.context.counters).set(0);
        self.context.counters.reserves_given_up.add(1);
        warn!(
            "the {} is full: the reserve is given up, so that partitions can be taken over and topics deleted; {} are \
             refused until there is room for it again; {}",
            self.place.volume, self.place.what, self.place.advice
        );
        self.reserve.missed();
        // Not at once: what it was given up for comes first.
        self.context.env.sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::BrokerId;

    use super::*;
    use crate::env::TaskClass;
    use crate::env::memory::{MemoryEnv, Operation};

    const BROKER: BrokerId = BrokerId(3);
    const MIN: u64 = MIN_RESERVE_BYTES;

    fn space(total_bytes: u64, available_bytes: u64) -> Option<VolumeSpace> {
        Some(VolumeSpace { total_bytes, available_bytes })
    }

    #[test]
    fn a_reserve_is_a_small_share_of_the_volume() {
        assert_eq!(reserve_bytes(0), MIN);
        assert_eq!(reserve_bytes(5_000 * MIN), 5 * MIN);
        assert_eq!(reserve_bytes(5_000_000_000), 4_997_120, "whole blocks");
        assert_eq!(reserve_bytes(u64::MAX), MAX_RESERVE_BYTES);
    }

    #[test]
    fn it_is_made_where_there_is_room_for_two() {
        assert_eq!(decide(None, space(50 * MIN, 2 * MIN)), Step::Make { bytes: MIN });
        assert_eq!(decide(None, space(50 * MIN, 2 * MIN - 1)), Step::Wait { bytes: MIN });
        assert_eq!(decide(Some(MIN), space(50 * MIN, 0)), Step::Adopt { bytes: MIN }, "also on a full volume");
        assert_eq!(decide(Some(MIN / 2), space(50 * MIN, MIN)), Step::Wait { bytes: MIN });
        assert_eq!(decide(Some(MIN), space(5_000 * MIN, 9 * MIN)), Step::Make { bytes: 5 * MIN }, "the volume grew");
        assert_eq!(decide(None, None), Step::Make { bytes: MIN });
        assert_eq!(decide(None, space(0, 0)), Step::Make { bytes: MIN }, "a volume that does not say");
        assert_eq!(decide(Some(MIN), None), Step::Adopt { bytes: MIN });
    }

    fn keep_on(env: &MemoryEnv) -> (Reserve, Rc<Counters>) {
        let (reserve, counters) = (Reserve::default(), Rc::new(Counters::default()));
        let context = LogContext::new(env.clone(), BROKER, 0, 2, Rc::clone(&counters), reserve.clone().into());
        for keeper in keepers(&context) {
            env.spawn(TaskClass::Background, keeper.keep());
        }
        (reserve, counters)
    }

    /// More than the keeper needs for what it does next.
    async fn a_while(env: &MemoryEnv) {
        env.sleep(LOOK_INTERVAL * 2).await;
    }

    async fn size(env: &MemoryEnv) -> Option<u64> {
        env.volume().size(&reserve_file(BROKER)).await.ok()
    }

    #[test]
    fn it_goes_when_room_is_needed_and_comes_back_when_there_is_some() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            volume.set_capacity(Some(4 * MIN));
            let (reserve, counters) = keep_on(&env);
            a_while(&env).await;
            assert_eq!((reserve.state(), size(&env).await), (ReserveState::InPlace, Some(MIN)));
            volume.set_capacity(Some(MIN));
            assert!(reserve.make_room().await && reserve.refuses_records());
            assert_eq!((size(&env).await, counters.reserves_given_up.get()), (None, 1));
            assert!(!reserve.make_room().await, "there is no other");
            a_while(&env).await;
            assert!(reserve.refuses_records(), "room for one is not enough");
            volume.set_capacity(Some(2 * MIN));
            a_while(&env).await;
            assert_eq!((reserve.state(), size(&env).await), (ReserveState::InPlace, Some(MIN)));
            assert_eq!((counters.reserve_bytes.get(), counters.reserves_given_up.get()), (MIN, 1));
        });
    }

    #[test]
    fn one_from_before_is_adopted_on_a_full_volume() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            keep_on(&env);
            env.volume().set_capacity(Some(2 * MIN));
            a_while(&env).await;
            env.volume().set_capacity(Some(MIN));
            let writes = env.volume().count(Operation::WriteAt);
            let (reserve, _) = keep_on(&env);
            a_while(&env).await;
            assert_eq!((reserve.state(), size(&env).await), (ReserveState::InPlace, Some(MIN)));
            assert_eq!(env.volume().count(Operation::WriteAt), writes, "nothing is written");
        });
    }

    #[test]
    fn half_a_reserve_is_none() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            // The volume says that there is room, and then there is none.
            volume.fail_next(Operation::Space, io::ErrorKind::Unsupported);
            volume.set_capacity(Some(MIN / 2));
            let (reserve, _) = keep_on(&env);
            a_while(&env).await;
            assert_eq!((reserve.state(), size(&env).await), (ReserveState::Missing, None));
        });
    }

    #[test]
    fn what_else_may_be_wrong_refuses_no_records() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            env.volume().fail_next(Operation::Open, io::ErrorKind::PermissionDenied);
            let (reserve, _) = keep_on(&env);
            env.sleep(LOOK_INTERVAL / 2).await;
            assert!(!reserve.refuses_records() && reserve.state() == ReserveState::Unknown);
            a_while(&env).await;
            assert_eq!(reserve.state(), ReserveState::InPlace);
        });
    }

    #[test]
    fn who_needs_room_while_it_is_made_does_not_wait_for_all_of_it() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            volume.hold(Operation::WriteAt);
            let (reserve, _) = keep_on(&env);
            env.sleep(LOOK_INTERVAL / 2).await;
            assert!(reserve.ask_for_room());
            volume.release(Operation::WriteAt);
            env.sleep(LOOK_INTERVAL / 2).await;
            assert_eq!((reserve.state(), size(&env).await), (ReserveState::Missing, None));
            assert_eq!(volume.count(Operation::WriteAt), 1);
        });
    }
}
