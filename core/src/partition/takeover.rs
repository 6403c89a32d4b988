//! Taking a partition over at a leader epoch: DESIGN section 8, in exactly that order.
//!
//! 1. create the own fence, exclusively;
//! 2. list: a higher epoch supersedes us;
//! 3. revoke every lower fence;
//! 4. list again, take the newest chain, verify the end of the log;
//! 5. establish: the manifest of the new epoch;
//! 6. ask the own fence. Only then is anything shown, accepted, cut or unlinked.
//!
//! A newer command interrupts between any two steps. What an interrupted or overtaken attempt leaves behind is a fence,
//! and perhaps a manifest that says what was true.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::reserve::is_full;
use kaas_proto::types::{LeaderEpoch, Offset};

use super::Partition;
use super::leader::Established;
use super::lifecycle::State;
use super::producer_state::ProducerTable;
use super::recover::{self, RecoveredState};
use super::snapshot::capture;
use super::tidy::{self, Tidy};
use super::transactions::TransactionIndex;
use crate::env::{Env, OpenMode, Volume, is_gone};
use crate::format::chain::Chain;
use crate::format::fence::{Fence, Revocation};
use crate::format::inventory::highest_epoch;
use crate::format::manifest::Manifest;
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::log::appender::ask_fence;
use crate::log::context::FileOf;
use crate::log::led_log::{LedLog, LogSettings, Recovered};
use crate::log::persist;
use crate::planted::{PlantedBug, is_planted};

/// How often a partition gives up indexes for want of room, and how many.
const ROOM_INTERVAL: Duration = Duration::from_secs(60);
const ROOM_INDEXES: usize = 4;

/// Which epoch to take over at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochChoice {
    /// One above the highest that is found: a standalone broker.
    Above,
    Exactly(LeaderEpoch),
}

/// Why a takeover did not end in leading.
#[derive(Debug)]
pub enum TakeoverEnd {
    /// A newer command is there.
    Interrupted,
    /// Somebody has this epoch or a higher one.
    Superseded { epoch: LeaderEpoch, by: Arc<str> },
    /// Try again: at a higher epoch, or from the recovery on if the fence is still held.
    Failed { reason: Arc<str>, volume_full: bool },
    /// Somebody has removed the directory, or the own fence. Try again: the next listing says who leads, if anybody does.
    Gone { what: Arc<str> },
}

impl TakeoverEnd {
    pub(super) fn failed(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::Failed { reason: format!("{what}: {error}").into(), volume_full: is_full(error) }
    }

    /// As [`TakeoverEnd::failed`], of what nobody removes from under a leader.
    fn gone_or_failed(what: impl fmt::Display, error: &io::Error) -> Self {
        if is_gone(error) { Self::Gone { what: format!("{what}: {error}").into() } } else { Self::failed(what, error) }
    }

    fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Failed { volume_full: true, .. })
    }

    pub(super) fn refused(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed { reason: reason.into(), volume_full: false }
    }
}

/// The own fence of an attempt.
#[derive(Debug)]
pub(super) struct HeldFence<E: Env> {
    epoch: LeaderEpoch,
    file: FileOf<E>,
}

/// What a successful takeover hands over.
pub(super) struct TakenOver<E: Env> {
    pub(super) established: Established<E>,
    pub(super) tidy: Tidy,
}

/// Goes through all steps. The lifecycle follows; the caller enters the state behind the last one.
pub(super) async fn take_over<E: Env>(
    partition: &Partition<E>,
    choice: EpochChoice,
    interrupted: &dyn Fn() -> bool,
) -> Result<TakenOver<E>, TakeoverEnd> {
    let attempt = Attempt { partition, interrupted, revoked: RefCell::default() };
    partition.enter(State::Fencing);
    let held = partition.held.take().filter(|held| match choice {
        EpochChoice::Above => true,
        // One above is what a failure leads to by itself; more is somebody's wish.
        EpochChoice::Exactly(epoch) => epoch.0 <= held.epoch.0 + 1,
    });
    let held = match held {
        Some(held) => held,
        None => match attempt.fence(choice).await {
            Err(end) if end.is_for_want_of_room() && attempt.give_up_reserve().await => attempt.fence(choice).await?,
            fenced => fenced?,
        },
    };
    let mut followed = attempt.follow(&held).await;
    let lacks_room = |followed: &Result<_, TakeoverEnd>| followed.as_ref().is_err_and(TakeoverEnd::is_for_want_of_room);
    for means in [Means::Reserve, Means::Fences, Means::Indexes] {
        if lacks_room(&followed) && attempt.make_room(means, &held).await? {
            partition.enter(State::Fencing);
            followed = attempt.follow(&held).await;
        }
    }
    match followed {
        Ok(found) => Ok(attempt.lead(held, found)),
        Err(end) => {
            if end.is_for_want_of_room() {
                // Nothing but room is missing: go on with this fence when there is some, instead of littering others.
                partition.held.replace(Some(held));
            }
            Err(end)
        }
    }
}

/// What the steps behind the fence gave.
struct Followed<E: Env> {
    revoked: Vec<LeaderEpoch>,
    recovered: RecoveredState<FileOf<E>>,
    manifest: Manifest,
}

/// What goes on a full volume, one after the other, so that a partition can be led.
#[derive(Clone, Copy)]
enum Means {
    Reserve,
    /// Of lower epochs, revoked. A deposed leader that asks its own finds no file then instead of a line; its epoch is over either way.
    Fences,
    Indexes,
}

struct Attempt<'a, E: Env> {
    partition: &'a Partition<E>,
    interrupted: &'a dyn Fn() -> bool,
    /// Lower fences that are known to be revoked, and that are still there.
    revoked: RefCell<Vec<LeaderEpoch>>,
}

impl<E: Env> Attempt<'_, E> {
    fn env(&self) -> &E {
        self.partition.context().env()
    }

    fn volume(&self) -> &E::Volume {
        self.env().volume()
    }

    fn check(&self) -> Result<(), TakeoverEnd> {
        if (self.interrupted)() { Err(TakeoverEnd::Interrupted) } else { Ok(()) }
    }

    /// Step 1.
    async fn fence(&self, choice: EpochChoice) -> Result<HeldFence<E>, TakeoverEnd> {
        let directory = self.partition.directory();
        if self.partition.context().owns_directories {
            let made = self.volume().create_directories(directory).await;
            made.map_err(|error| TakeoverEnd::failed("the directory can't be made", &error))?;
        }
        let epoch = match choice {
            EpochChoice::Exactly(epoch) => epoch,
            EpochChoice::Above => above(highest_epoch(self.list().await?.iter().map(String::as_str))),
        };
        self.check()?;
        self.partition.attempted.set(Some(epoch));
        let path = directory.join(PartitionFile::Fence(epoch).to_string());
        let mut opened = self.volume().open(&path, OpenMode::CreateNew).await;
        if is_planted(PlantedBug::FenceNotExclusive)
            && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        {
            opened = self.volume().open(&path, OpenMode::ReadWrite).await;
        }
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(TakeoverEnd::Superseded { epoch, by: format!("whoever made {}", path.display()).into() });
            }
            Err(error) => {
                return Err(TakeoverEnd::gone_or_failed(format_args!("{} can't be made", path.display()), &error));
            }
        };
        Ok(HeldFence { epoch, file })
    }

    /// Steps 2 and 3. Returns the fences that are revoked.
    async fn revoke_lower(&self, epoch: LeaderEpoch) -> Result<Vec<LeaderEpoch>, TakeoverEnd> {
        let names = self.list_without_higher(epoch).await?;
        self.check()?;
        let broker = self.partition.context().log.broker;
        let revocation = Revocation { epoch, broker, time_ms: self.env().wall_clock() };
        let mut revoked = Vec::new();
        let lower = if is_planted(PlantedBug::NoRevocation) { Vec::new() } else { lower_fences(&names, epoch) };
        for lower in lower {
            let path = self.partition.directory().join(PartitionFile::Fence(lower).to_string());
            match self.volume().overwrite(&path, revocation.encode()).await {
                Ok(()) => revoked.push(lower),
                // A higher epoch has tidied it: the next listing shows whose.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(TakeoverEnd::failed(format_args!("{} can't be revoked", path.display()), &error));
                }
            }
            self.check()?;
        }
        self.revoked.replace(revoked.clone());
        Ok(revoked)
    }

    async fn list(&self) -> Result<Vec<String>, TakeoverEnd> {
        let directory = self.partition.directory();
        let listed = self.volume().list(directory).await;
        let can_not =
            |error| TakeoverEnd::gone_or_failed(format_args!("{} can't be listed", directory.display()), &error);
        let entries = listed.map_err(can_not)?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    async fn list_without_higher(&self, epoch: LeaderEpoch) -> Result<Vec<String>, TakeoverEnd> {
        let names = self.list().await?;
        match highest_epoch(names.iter().map(String::as_str)) {
            Some(highest) if highest > epoch && !is_planted(PlantedBug::NoListAfterFence) => {
                Err(TakeoverEnd::Superseded { epoch: highest, by: format!("whoever took epoch {highest}").into() })
            }
            Some(_) | None => Ok(names),
        }
    }

    /// Steps 2 to 6.
    async fn follow(&self, held: &HeldFence<E>) -> Result<Followed<E>, TakeoverEnd> {
        self.check()?;
        let seen_too_early = match is_planted(PlantedBug::ScanBeforeRevoke) {
            true => Some(self.recover(held.epoch).await?),
            false => None,
        };
        let revoked = self.revoke_lower(held.epoch).await?;
        self.partition.enter(State::Recovering);
        let recovered = match seen_too_early {
            Some(recovered) => recovered,
            None => self.recover(held.epoch).await?,
        };
        self.check()?;
        if let Some((segment, length)) = recovered.torn.filter(|_| is_planted(PlantedBug::CutBeforeAsk)) {
            drop(tidy::cut(self.volume(), &self.partition.directory().join(segment.log()), length).await);
        }
        self.partition.enter(State::Establishing);
        let manifest = self.establish(held.epoch, &recovered).await?;
        self.check()?;
        self.partition.enter(State::Asking);
        if !is_planted(PlantedBug::ServeBeforeAsk) {
            self.ask(held).await?;
        }
        Ok(Followed { revoked, recovered, manifest })
    }

    async fn recover(&self, epoch: LeaderEpoch) -> Result<RecoveredState<FileOf<E>>, TakeoverEnd> {
        for _ in 0..recover::MAX_LISTINGS {
            let names = self.list_without_higher(epoch).await?;
            self.check()?;
            let found = recover::find_manifest(self.volume(), self.partition.directory(), &names, epoch).await?;
            self.check()?;
            match found {
                recover::Found::Nothing => return Ok(RecoveredState::empty(names)),
                recover::Found::Manifest(manifest) => {
                    let recovery = recover::Recovery {
                        env: self.env(),
                        directory: self.partition.directory(),
                        log: &self.partition.context().log,
                        interrupted: self.interrupted,
                    };
                    return recovery.run(*manifest, names).await;
                }
                // It went between the listing and the read: somebody tidied, list again.
                recover::Found::Gone => {}
            }
        }
        Err(TakeoverEnd::refused("manifests come and go, the directory does not hold still"))
    }

    /// True if something went, so that there may be room now.
    async fn make_room(&self, means: Means, held: &HeldFence<E>) -> Result<bool, TakeoverEnd> {
        match means {
            Means::Reserve => Ok(self.give_up_reserve().await),
            Means::Fences => self.give_up_fences(held).await,
            Means::Indexes => self.give_up_indexes(held).await,
        }
    }

    async fn give_up_reserve(&self) -> bool {
        !is_planted(PlantedBug::ReserveIsKept) && self.partition.context().log.make_room(self.partition.key()).await
    }

    async fn give_up_fences(&self, held: &HeldFence<E>) -> Result<bool, TakeoverEnd> {
        let revoked = self.revoked.take();
        if revoked.is_empty() {
            return Ok(false);
        }
        self.ask(held).await?;
        let directory = self.partition.directory();
        for &epoch in &revoked {
            let path = directory.join(PartitionFile::Fence(epoch).to_string());
            match self.volume().unlink(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(TakeoverEnd::failed("a revoked fence can't be given up for want of room", &error));
                }
                _ => {}
            }
        }
        // Only then is the room there for others.
        let synced = self.volume().sync_directory(directory).await;
        synced.map_err(|error| TakeoverEnd::failed("the directory can't be synced", &error))?;
        Ok(true)
    }

    /// Those of the oldest segments, which can be built anew, so that retention can do its work. Now and then, and only where retention
    /// may find something.
    async fn give_up_indexes(&self, held: &HeldFence<E>) -> Result<bool, TakeoverEnd> {
        let (config, now) = (self.partition.config(), self.env().now());
        let is_limited = config.delete && (config.retention_ms.is_some() || config.retention_bytes.is_some());
        let made_lately = self.partition.made_room_at.get().is_some_and(|made| now.since(made) < ROOM_INTERVAL);
        if !is_limited || made_lately {
            return Ok(false);
        }
        let indexes = older_indexes(&self.list_without_higher(held.epoch).await?);
        self.ask(held).await?;
        self.partition.made_room_at.set(Some(now));
        for index in &indexes[..indexes.len().min(ROOM_INDEXES)] {
            let path = self.partition.directory().join(index.index());
            let unlinked = self.volume().unlink(&path).await;
            unlinked.map_err(|error| TakeoverEnd::failed("an index can't be given up for want of room", &error))?;
        }
        Ok(!indexes.is_empty())
    }

    /// Asks the own fence.
    async fn ask(&self, held: &HeldFence<E>) -> Result<(), TakeoverEnd> {
        let answer = ask_fence(&held.file).await;
        self.partition.context().log.counters.asks.add(1);
        match answer {
            Ok(Fence::Held) => self.check(),
            // Whoever it is has gone further than we: a listing would show a higher epoch.
            Ok(Fence::Revoked(by)) => Err(TakeoverEnd::Superseded { epoch: held.epoch, by: by.to_string().into() }),
            Err(error) => Err(TakeoverEnd::gone_or_failed("the own fence can't be asked", &error)),
        }
    }

    /// Step 5: the state of the producers, then the manifest, which makes both count.
    async fn establish(
        &self,
        epoch: LeaderEpoch,
        recovered: &RecoveredState<FileOf<E>>,
    ) -> Result<Manifest, TakeoverEnd> {
        let directory = self.partition.directory();
        let RecoveredState { log_start, log_end, producers, transactions, .. } = recovered;
        let former = recovered.manifest.as_ref();
        let chain = former.map_or_else(Chain::default, |former| former.chain.clone());
        let chain = chain.extend(epoch, *log_end).map_err(|error| TakeoverEnd::refused(error.to_string()))?;
        let manifest = Manifest {
            epoch,
            high_watermark: *log_end,
            log_start_offset: *log_start,
            chain: chain.trim(*log_start),
            replaced: former.map_or_else(Vec::new, |former| former.replaced_above(*log_start)),
            relinquished: false,
        };
        if !producers.is_empty() || !transactions.is_empty() {
            let snapshot = capture(*log_end, producers, transactions).encode();
            let written = persist::replace(self.env(), directory, PartitionFile::Producers(epoch), snapshot).await;
            written.map_err(|error| TakeoverEnd::failed("the producer snapshot can't be written", &error))?;
            self.check()?;
        }
        let written = persist::replace(self.env(), directory, PartitionFile::Manifest(epoch), manifest.encode()).await;
        written.map_err(|error| TakeoverEnd::failed("the manifest can't be written", &error))?;
        let synced = self.volume().sync_directory(directory).await;
        synced.map_err(|error| TakeoverEnd::failed("the directory can't be synced", &error))?;
        Ok(manifest)
    }

    fn lead(&self, held: HeldFence<E>, found: Followed<E>) -> TakenOver<E> {
        let Followed { revoked, recovered, manifest } = found;
        let RecoveredState { segments, log_start, log_end, producers, transactions, names, torn, damaged, .. } =
            recovered;
        let tidy = Tidy::plan(&manifest, &names, &revoked, torn, &damaged);
        let log = LedLog::new(
            Rc::clone(&self.partition.context().log),
            Recovered {
                directory: self.partition.directory().to_path_buf(),
                epoch: held.epoch,
                fence: held.file,
                segments,
                log_start,
                log_end,
                settings: LogSettings::from(&*self.partition.config()),
                reserve: self.partition.context().log.reserves.of(self.partition.key()).clone(),
                share: Rc::clone(self.partition.context().log.share_of(self.partition.key())),
            },
        );
        TakenOver { established: Established { log, manifest, producers, transactions }, tidy }
    }
}

/// The first epoch is 1: 0 stands for "never led".
fn above(highest: Option<LeaderEpoch>) -> LeaderEpoch {
    LeaderEpoch(highest.map_or(0, |epoch| epoch.0) + 1)
}

/// The segments in front of the newest one that have an index, oldest first.
fn older_indexes(names: &[String]) -> Vec<SegmentName> {
    let files = || names.iter().filter_map(|name| PartitionFile::parse(name));
    let newest =
        files().filter_map(|file| if let PartitionFile::Log(segment) = file { Some(segment) } else { None }).max();
    let indexed =
        files().filter_map(|file| if let PartitionFile::Index(segment) = file { Some(segment) } else { None });
    let mut older: Vec<_> = indexed.filter(|&segment| newest.is_some_and(|newest| segment < newest)).collect();
    older.sort_unstable();
    older
}

fn lower_fences(names: &[String], epoch: LeaderEpoch) -> Vec<LeaderEpoch> {
    let mut lower: Vec<_> = names
        .iter()
        .filter_map(|name| match PartitionFile::parse(name) {
            Some(PartitionFile::Fence(lower)) if lower < epoch => Some(lower),
            _ => None,
        })
        .collect();
    lower.sort_unstable();
    lower
}

impl<F> RecoveredState<F> {
    /// A partition that nobody has led.
    fn empty(names: Vec<String>) -> Self {
        Self {
            manifest: None,
            segments: Vec::new(),
            log_start: Offset(0),
            log_end: Offset(0),
            producers: ProducerTable::default(),
            transactions: TransactionIndex::default(),
            names,
            torn: None,
            damaged: Vec::new(),
        }
    }
}
