//! The task of a partition: carries out what is wanted, one action at a time, until nothing is left to do.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use kaas_proto::control::PartitionChange;
use tracing::{debug, info, warn};

use super::Partition;
use super::action::{Action, Situation, Wanted, next_action};
use super::leader::Leader;
use super::lifecycle::State;
use super::takeover::{EpochChoice, TakenOver, TakeoverEnd, take_over};
use super::tidy::{FENCE_LINGER, Tidy};
use crate::env::{Env, TaskClass, Volume};
use crate::log::led_log::STALL_LIMIT;

/// The pause after a failure; doubled with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Space may come back at any time, and looking for it costs little.
const MAX_BACKOFF_WHEN_FULL: Duration = Duration::from_secs(1);

/// How often a standalone broker that is overtaken while it takes over goes above whoever did it.
const MAX_OVERTAKEN: u32 = 8;

impl<E: Env> Partition<E> {
    pub(super) async fn run(self: Rc<Self>) {
        loop {
            self.send_reports().await;
            match next_action(self.wanted.get(), self.situation()) {
                Action::TakeOver(choice) => self.take_over(choice).await,
                Action::TryAgain(choice) => self.try_again(choice).await,
                Action::Relinquish => self.relinquish().await,
                Action::Abandon => self.abandon().await,
                Action::Close => self.close(),
                Action::Rest if !self.reports.borrow().is_empty() => {}
                Action::Rest if self.owes_relinquished.take() => self.report_relinquished(),
                Action::Rest if self.leaves_directory() => self.remove_directory().await,
                Action::Rest => break,
            }
        }
        self.driving.set(false);
        self.settled.notify_waiters();
        if self.state() == State::Closed
            && let Some(observer) = self.context.observer()
        {
            observer.closed(self.key);
        }
    }

    async fn send_reports(&self) {
        loop {
            let next = self.reports.borrow_mut().pop_front();
            let Some(change) = next else { return };
            self.context.report(self.key, change).await;
        }
    }

    fn situation(&self) -> Situation {
        let led = self.leader.borrow().as_ref().map(|leader| leader.epoch());
        Situation { state: self.state(), led, attempted: self.attempted.get() }
    }

    async fn take_over(self: &Rc<Self>, choice: EpochChoice) {
        let command = self.command.get();
        let permit = future::or(async { Some(self.context.takeovers.wait(self.key).await) }, async {
            self.commanded_after(command).await;
            None
        });
        let Some(_permit) = permit.await else { return };
        let interrupted = || self.command.get() != command;
        let mut overtaken = 0;
        loop {
            // A newer command does not wait for a call that hangs. What is under way may still land: it is of this attempt's epoch.
            let newer = async {
                self.commanded_after(command).await;
                Err(TakeoverEnd::Interrupted)
            };
            match future::or(Box::pin(take_over(self, choice, &interrupted)), newer).await {
                Ok(taken) => return self.lead(taken),
                Err(TakeoverEnd::Superseded { .. }) if choice == EpochChoice::Above && overtaken < MAX_OVERTAKEN => {
                    overtaken += 1;
                }
                Err(end) => return self.not_leading(end),
            }
        }
    }

    fn lead(self: &Rc<Self>, taken: TakenOver<E>) {
        let TakenOver { established, tidy } = taken;
        // The leader of a failed epoch has served readers until now.
        self.close_leader();
        let leader = Leader::new(self, established);
        self.leader.replace(Some(Rc::clone(&leader)));
        self.enter(State::Leading);
        self.refusal.take();
        self.told.take();
        self.failures.set(0);
        if self.volume_full.replace(false) {
            // Retention may make room, if there is enough to say so.
            let partition = Rc::clone(self);
            self.context.env().spawn(TaskClass::Background, async move { partition.apply_retention().await });
        }
        self.context.log.counters.takeovers.add(1);
        let log = leader.log();
        debug!(
            directory = %self.directory.display(), epoch = %leader.epoch(), log_start = %log.log_start(),
            high_watermark = %log.high_watermark(), "leading"
        );
        self.report(PartitionChange::Leading { epoch: leader.epoch() });
        if let Some(observer) = self.context.observer() {
            observer.leads(&leader);
        }
        self.context.env().spawn(TaskClass::Background, clean_up(leader, tidy));
    }

    fn not_leading(&self, end: TakeoverEnd) {
        match end {
            TakeoverEnd::Interrupted => {
                self.close_leader();
                self.tell_lost();
                self.held.take();
                self.refusal.take();
                self.enter(State::Closed);
            }
            TakeoverEnd::Superseded { epoch, by } => {
                info!(directory = %self.directory.display(), %epoch, %by, "superseded");
                self.superseded(epoch, by);
            }
            TakeoverEnd::Failed { reason, volume_full } => {
                self.tell_failed(&reason);
                self.context.log.counters.takeover_failures.add(1);
                self.failed(reason, volume_full);
            }
            TakeoverEnd::Gone { what } => {
                self.tell_failed(&what);
                self.context.log.counters.takeover_failures.add(1);
                self.gone(what);
            }
        }
    }

    /// Logs why a takeover failed, once: so that, of many that fail at the same time, each gets its turn below the limit.
    fn tell_failed(&self, reason: &Arc<str>) {
        let is_told = self.told.borrow().as_ref() == Some(reason);
        if !is_told && self.context.log.may_log("takeover_failed") {
            warn!(directory = %self.directory.display(), %reason, "the takeover failed; it is tried again");
            self.told.replace(Some(Arc::clone(reason)));
        }
    }

    async fn try_again(self: &Rc<Self>, choice: EpochChoice) {
        let command = self.command.get();
        let longest = if self.volume_full.get() { MAX_BACKOFF_WHEN_FULL } else { MAX_BACKOFF };
        let doublings = self.failures.get().saturating_sub(1).min(16);
        let pause = FIRST_BACKOFF.saturating_mul(1 << doublings).min(longest);
        // A command that came after the failure is carried out at once.
        if self.failed_command.get() == command {
            future::or(self.context.env().sleep(pause), self.commanded_after(command)).await;
        }
        if self.command.get() == command && self.state() == State::Failed {
            self.take_over(choice).await;
        }
    }

    async fn relinquish(&self) {
        let Some(leader) = self.leader.borrow().clone() else { return };
        self.enter(State::Draining);
        // Another relinquish changes nothing; an abandon or a takeover makes waiting for a hanging write pointless.
        let interrupted = async {
            loop {
                self.commanded_after(self.command.get()).await;
                if self.wanted.get() != Wanted::Closed {
                    return;
                }
            }
        };
        leader.relinquish(interrupted).await;
        if self.state() == State::Draining {
            self.close();
        }
    }

    async fn abandon(&self) {
        let Some(leader) = self.leader.borrow().clone() else { return };
        let command = self.command.get();
        self.close();
        // What is under way holds handles until it returns.
        let returned = future::or(leader.log().at_rest(), self.context.env().sleep(STALL_LIMIT));
        future::or(returned, self.commanded_after(command)).await;
    }

    /// Lets go of everything.
    fn close(&self) {
        let was_led = self.leader.borrow().is_some();
        self.close_leader();
        self.held.take();
        self.refusal.take();
        if was_led {
            self.tell_lost();
        }
        self.enter(State::Closed);
    }

    fn report_relinquished(&self) {
        if self.wanted.get() == Wanted::Closed {
            self.report(PartitionChange::Relinquished { epoch: self.attempted.get().unwrap_or_default() });
        }
    }

    /// Whether the directory of a topic that is gone is ours to remove: in local-dev mode nobody else does it.
    fn leaves_directory(&self) -> bool {
        let is_gone = self.state() == State::Closed && self.wanted.get() == Wanted::Abandoned;
        is_gone && self.context.owns_directories && !self.directory_removed.replace(true)
    }

    async fn remove_directory(&self) {
        let volume = self.context.env().volume();
        for entry in volume.list(&self.directory).await.unwrap_or_default() {
            drop(volume.unlink(&self.directory.join(entry.name)).await);
        }
        drop(volume.remove_directory(&self.directory).await);
    }
}

/// What has time until the partition leads: dead files, sizes of older segments, revoked fences.
async fn clean_up<E: Env>(leader: Rc<Leader<E>>, tidy: Tidy) {
    let volume = leader.context.env().volume().clone();
    let directory = leader.log().directory().to_path_buf();
    tidy.run(&volume, &directory, &leader.context.log.counters).await;
    for segment in leader.log().segments() {
        if segment.bytes.get() == 0
            && let Ok(bytes) = volume.size(&directory.join(segment.name.log())).await
        {
            segment.bytes.set(bytes);
        }
    }
    let leader_is_there = Rc::downgrade(&leader);
    let env = leader.context.env().clone();
    drop(leader);
    env.sleep(FENCE_LINGER).await;
    if leader_is_there.upgrade().is_some_and(|leader| !leader.log().has_ended()) {
        tidy.unlink_fences(&volume, &directory).await;
    }
}
