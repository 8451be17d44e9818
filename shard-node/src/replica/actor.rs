//! The steps of a replica: it takes inputs, ticks, lets raft advance, applies, compares, answers
//! and flushes.
//!
//! ```text
//!  mailbox ──► inputs ──► raft: sync the log, send ──► committed entries ──► apply ──► outcomes
//!                                                                                        │
//!     proposer ◄── answer once a majority of voters agrees ◄── compare ◄── own and others' digests
//!                                                                                        │
//!                                              flush by time, entries or bytes, then cut the log
//! ```

mod apply;
mod copies;
mod leadership;
mod requests;
mod sleep;
mod snapshot;
mod work;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_consensus::{Beside, Committed, Group, Message, Output, Position, RaftId, Role as RaftRole, Writing};
use coppice_env::{Laps, Shortage};
use coppice_proto::{
    convert,
    v1::{DigestReport, MergeReport, PeerMessage, peer_message::Body},
};
use coppice_types::{Digest, ErrorKind, Reason};
use opentelemetry::KeyValue;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{
    agreement::{Agreements, Verdict, Voters},
    cold::Cold,
    config::Config,
    durations::group_label,
    fitness::{self, Fitness},
    flushing::Flushing,
    home::Home,
    input::{Answer, Input},
    machine::StateMachine,
    maintain::{Backlog, Maintain, catch_up, foresee},
    readers::{Gone, Readers},
    rest::Rest,
    shared::Shared,
    snapshots::Snapshots,
    status::{Member, Role},
    waiters::{Reads, Waiters},
};
use crate::{Error, refusal::Refusal};

/// Ticks after which a lost ReadIndex is sent again.
const READ_RETRY_TICKS: u32 = 4;
/// Ticks between two rounds of repetitions: open digests, merges, care of snapshots.
const CARE_TICKS: u64 = 10;
/// Limit on the digests that are repeated in one round.
const REPEATED_MAX: usize = 64;
/// How soon the thread tries again if a reader has the state machine.
const BLOCKED_WAIT: Duration = Duration::from_millis(1);
/// Limit on the missed ticks that are made up for at once after a pause. Further ones are skipped.
const LATE_TICKS_MAX: u32 = 4;

/// Everything that a replica's thread owns.
pub(super) struct Actor<M: StateMachine> {
    config: Arc<Config<M>>,
    shared: Arc<Shared<M>>,
    /// The flushes and cuts. One of them may be writing to the directory, so this is dropped before
    /// the directory's lock.
    flushing: Flushing<M>,
    home: Home,
    group: Group,
    applied: Position,
    agreements: Agreements,
    /// Entries with new digests since the last comparison.
    touched: BTreeSet<u64>,
    voters: Voters,
    members: Vec<RaftId>,
    /// Committed entries that are not applied yet.
    backlog: VecDeque<Committed>,
    /// Time spent on looking ahead since the last entry was applied.
    looked_ahead: Duration,
    /// The time at which the next step of background work is due; `None` if there is no work.
    work_at: Option<Duration>,
    /// Times of the parts of the step in progress.
    laps: Laps,
    /// Labels of recorded durations.
    labels: [KeyValue; 1],
    waiters: Waiters<M::Reply>,
    reads: Reads,
    leading: bool,
    snapshots: Snapshots<M>,
    fitness: Fitness,
    cold: Cold,
    copies: copies::Copies,
    rest: Rest,
    gone: Gone,
    ended: bool,
    next_tick: Duration,
    /// The time from which the durable state is checked again.
    scrub_from: Duration,
    /// The time at which a sleeping replica continues to check its durable state.
    scrub_at: Duration,
    ticks: u64,
    /// The tick until which a retiring leader waits for a successor, and the channel to report the
    /// end.
    retiring: Option<(u64, Answer<()>)>,
}

impl<M: StateMachine> Actor<M> {
    pub(super) fn new(
        config: Arc<Config<M>>,
        shared: Arc<Shared<M>>,
        home: Home,
        group: Group,
        applied: Position,
    ) -> Self {
        let mut actor = Self {
            home,
            group,
            applied,
            agreements: Agreements::new(config.identity.raft_id),
            touched: BTreeSet::new(),
            voters: Voters::default(),
            members: Vec::new(),
            backlog: VecDeque::new(),
            looked_ahead: Duration::ZERO,
            work_at: None,
            laps: Laps::begin(config.site.clock.now()),
            labels: [group_label(config.identity.group)],
            waiters: Waiters::new(),
            reads: Reads::default(),
            leading: false,
            snapshots: Snapshots::new(Arc::clone(&config), Arc::clone(&shared)),
            flushing: Flushing::new(Arc::clone(&config), Arc::clone(&shared)),
            fitness: Fitness::default(),
            cold: Cold::default(),
            copies: copies::Copies::default(),
            rest: Rest::default(),
            gone: Gone::default(),
            ended: false,
            next_tick: config.site.clock.now(),
            scrub_from: Duration::ZERO,
            scrub_at: Duration::MAX,
            ticks: 0,
            retiring: None,
            config,
            shared,
        };
        actor.shared.gate.take_blocked();
        actor.forget_cleared();
        actor.note_members();
        actor
    }

    pub(super) fn config(&self) -> &Arc<Config<M>> {
        &self.config
    }

    fn now(&self) -> Duration {
        self.config.site.clock.now()
    }

    /// Prepares for the first step.
    ///
    /// # Errors
    /// If the replica can't run.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.home.remove_own_reserve()?;
        self.flushing.take_reserve()?;
        // Nodes are mostly started in the order of their ids, so the last one asks for votes
        // without waiting for a timeout. If there is a leader, no replica answers.
        if self.voters.incoming.iter().max() == Some(&self.config.identity.raft_id)
            && let Err(error) = self.group.campaign()
        {
            tracing::debug!(%error, "no early campaign");
        }
        Ok(())
    }

    /// Whether the mailbox is closed, or the replica was removed or has retired.
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.shared.mailbox.is_closed()
    }

    /// How long the next step may wait for an input.
    pub(super) fn wait(&self) -> Duration {
        let tick_at = if self.rest.asleep { self.scrub_at } else { self.next_tick };
        let next = self.work_at.map_or(tick_at, |at| at.min(tick_at));
        let limit = if self.shared.gate.take_blocked() { BLOCKED_WAIT } else { Duration::MAX };
        next.saturating_sub(self.now()).min(limit)
    }

    /// Runs one round of all steps, with the inputs that have arrived.
    ///
    /// # Errors
    /// If the replica cannot continue.
    pub(super) fn step(&mut self, inputs: Vec<Input<M>>) -> Result<(), Error> {
        self.laps.restart(self.now());
        let idle = inputs.is_empty();
        for input in inputs {
            self.stir(&input);
            self.input(input)?;
        }
        self.lap("inputs");
        if self.rest.asleep {
            self.scrub_asleep()?
        } else {
            self.tick()?
        }
        self.lap("tick");
        self.send_read_index();
        self.advance()?;
        self.apply_backlog()?;
        self.lap("apply");
        self.compare()?;
        self.lap("compare");
        self.flush_if_due()?;
        self.lap("flush");
        self.clear_copies()?;
        self.lap("copies");
        self.cold.go_on(&self.config, &self.shared);
        self.hand_over_if_unfit();
        self.publish();
        self.lap("publish");
        self.work_at = self.work(idle)?;
        self.lap("merge");
        if let Some(row) = self.laps.long(self.now()) {
            tracing::debug!(target: Laps::TARGET, group = %self.config.identity.group, "{row}");
        }
        if !self.shared.gate.is_blocked() {
            // An earlier step may have closed the gate, and its work may be gone by now.
            self.shared.gate.open();
        }
        Ok(())
    }

    fn lap(&mut self, part: &'static str) {
        self.laps.lap(part, self.now());
    }

    /// Returns the fetch of a snapshot in progress, for the caller to await.
    pub(super) fn leave(&mut self) -> Option<JoinHandle<()>> {
        self.snapshots.leave()
    }

    fn input(&mut self, input: Input<M>) -> Result<(), Error> {
        match input {
            Input::Peer(message, node) => self.peer(message, &node)?,
            Input::Wake(_) => {}
            Input::Unreachable(node) => {
                let there = self.members.iter().filter(|id| self.config.site.node_of(**id).as_deref() == Some(&node));
                for id in there.copied().collect::<Vec<_>>() {
                    self.group.report_unreachable(id);
                    self.group.suspect(id);
                }
            }
            Input::Command(command, answer, sender) => self.propose(command, answer, sender)?,
            Input::ReadIndex(answer) => self.reads.queue(answer),
            Input::Change(change, answer) => self.change(change, answer),
            Input::Fetched(position, result) => self.fetched(position, result)?,
            Input::Checked(began, result) => self.checked(began, result)?,
            Input::Damaged(note) => self.quarantine(0, Digest::default(), Digest::default(), &note)?,
            Input::Retire(hand_over, answer) => self.retire(hand_over, answer),
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Error> {
        let now = self.now();
        let tick = self.config.site.tuning.tick;
        if now > self.next_tick + tick * LATE_TICKS_MAX {
            self.next_tick = now;
        }
        while now >= self.next_tick {
            self.group.tick();
            self.lap("tick");
            self.next_tick += tick;
            self.ticks += 1;
            self.look_after_fitness();
            self.lap("fitness");
            self.scrub()?;
            self.lap("scrub");
            self.erase()?;
            self.lap("erase");
            self.cold.grant(&self.config, &self.shared);
            if self.ticks.is_multiple_of(CARE_TICKS) {
                self.care()?;
                self.lap("care");
            }
            self.rest_if_quiet();
            if self.rest.asleep {
                return Ok(());
            }
        }
        self.reads.retry(now.saturating_sub(tick * READ_RETRY_TICKS));
        let follows = || self.group.status().leader.is_some_and(|leader| leader != self.config.identity.raft_id);
        if self.retiring.as_ref().is_some_and(|(until, _)| self.ticks >= *until || follows())
            && let Some((_, answer)) = self.retiring.take()
        {
            self.ended = true;
            self.flush()?;
            drop(answer.send(Ok(())));
        }
        Ok(())
    }

    /// Repeats messages that may have been lost, and looks after snapshots.
    fn care(&mut self) -> Result<(), Error> {
        for (index, own) in self.agreements.overdue(REPEATED_MAX) {
            self.broadcast(&Body::Digest(to_report(index, own, true)));
        }
        let built = self.shared.read_machine().as_ref().map(Maintain::built).unwrap_or_default();
        if !built.is_empty() {
            let built = built.iter().map(convert::to_merge).collect();
            self.broadcast(&Body::Merge(MergeReport { built }));
        }
        self.waiters.sweep();
        self.forget_the_gone();
        self.snapshots.care(self.applied, &mut self.group).or_else(|error| self.failed(error))
    }

    fn send_read_index(&mut self) {
        if self.reads.wants_index() && self.shared.read_machine().is_some() {
            match self.group.read_index() {
                Ok(id) => self.reads.sent(id, self.now()),
                Err(error) => tracing::trace!(%error, "no read index now"),
            }
        }
    }

    /// Lets raft send, sync and commit, and applies the entries that it returns. While a large
    /// batch is written to the log, the state machine looks ahead at it.
    fn advance(&mut self) -> Result<(), Error> {
        while self.group.has_ready() {
            let (mut unsent, mut worked) = (Vec::new(), Ok(()));
            let (config, shared, unfit) = (&self.config, &self.shared, self.fitness.told);
            let mut send = |message: Message| {
                let to = message.to();
                if !send(config, unfit, to, Body::Raft(message.encode().into())) {
                    unsent.push((to, message.is_snapshot()));
                }
            };
            // Waiting committed entries come first.
            let (waits, looked_ahead) = (!self.backlog.is_empty(), &mut self.looked_ahead);
            let backlog = if self.flushing.short_of().is_some() { Backlog::Behind } else { Backlog::Some };
            let mut meanwhile = |writing: &Writing<'_>| {
                if !waits && worked.is_ok() {
                    let began = config.site.clock.now();
                    foresee(&shared.machine, writing.commands);
                    *looked_ahead += config.site.clock.now().saturating_sub(began);
                    worked = catch_up(&shared.machine, backlog, writing.goes_on);
                }
            };
            let times = Mutex::new(Vec::new());
            let note = |_| times.lock().push(config.site.clock.now());
            let workers = config.site.tuning.engine.workers;
            let beside = Beside { workers, meanwhile: &mut meanwhile, writes: &note };
            let output = self.group.advance_beside(&mut send, beside)?;
            self.lap("log");
            for write in times.into_inner().chunks_exact(2) {
                self.note_pace(write[1].saturating_sub(write[0]));
            }
            for (to, snapshot) in unsent {
                self.group.report_unreachable(to);
                if snapshot {
                    self.group.report_snapshot(to, false);
                }
            }
            self.output(output)?;
            worked.or_else(|error| self.work_failed(error))?;
        }
        Ok(())
    }

    fn output(&mut self, output: Output) -> Result<(), Error> {
        if let Some(change) = output.role {
            self.leading = change.role == RaftRole::Leader;
        }
        if let Some(install) = output.install {
            self.install(install.position)?;
        }
        self.backlog.extend(output.committed);
        self.apply_backlog()?;
        self.lap("apply");
        for read in output.reads {
            self.reads.ready(read.id, read.index);
        }
        if let Some(offer) = output.snapshot_offer {
            self.snapshots.take_in(offer, &self.home, &mut self.group, &mut self.flushing)?;
        }
        if let Some(position) = output.snapshot_discarded {
            self.snapshots.discarded(position, &self.home)?;
        }
        if let Some(index) = output.snapshot_wanted {
            self.snapshots.want(index, self.applied, &mut self.group).or_else(|error| self.failed(error))?;
        }
        if output.removed {
            self.ended = true;
            self.shared.set_note("removed from the group");
        }
        Ok(())
    }

    /// Compares outcomes. Answers those that a majority shares, and quarantines this replica if a
    /// majority has another outcome.
    fn compare(&mut self) -> Result<(), Error> {
        for index in std::mem::take(&mut self.touched) {
            if let Verdict::Diverged(majority) = self.agreements.verdict(index, &self.voters) {
                let own = self.agreements.own(index).unwrap_or_default();
                self.quarantine(index, own, majority, "a different digest than the majority's")?;
            }
        }
        let machine = self.shared.machine.read();
        let (own_id, voters) = (self.config.identity.raft_id, &self.voters);
        self.waiters.settle(&mut self.agreements, voters, |reply| {
            if let Some(machine) = machine.as_ref() {
                machine.complete(reply, own_id, voters);
            }
        });
        Ok(())
    }

    /// Closes the state machine for good. Raft notes it durably, and asks for a snapshot until one
    /// is installed.
    fn quarantine(&mut self, index: u64, own: Digest, majority: Digest, note: &str) -> Result<(), Error> {
        if self.group.quarantined().is_some() {
            return Ok(());
        }
        self.wake(Duration::ZERO);
        let evidence = format!("entry {index}: own {own}, majority {majority}: {note}");
        tracing::error!(group = %self.config.identity.group, evidence, "this replica is quarantined");
        self.shared.counts.quarantines.fetch_add(1, Ordering::Relaxed);
        if self.leading {
            if self.heir().is_none_or(|heir| self.group.resign_to(heir).is_err()) {
                self.group.step_down();
            }
            self.leading = false;
        }
        self.group.quarantine(evidence.as_bytes())?;
        self.close();
        self.agreements = Agreements::new(self.config.identity.raft_id);
        self.waiters.fail_all(&Refusal::new(Reason::Unavailable, "the replica is quarantined: ask another one"));
        self.shared.set_note(evidence);
        Ok(())
    }

    fn note_members(&mut self) {
        let membership = self.group.status().membership;
        self.voters = Voters { incoming: membership.voters.clone(), outgoing: membership.voters_outgoing.clone() };
        let all = [&membership.voters, &membership.voters_outgoing, &membership.learners, &membership.learners_next];
        self.members = all.into_iter().flatten().copied().collect();
        self.members.sort_unstable();
        self.members.dedup();
    }

    fn broadcast(&self, body: &Body) {
        for id in self.members.iter().filter(|id| **id != self.config.identity.raft_id) {
            send(&self.config, self.fitness.told, *id, body.clone());
        }
    }

    fn send_to(&self, id: RaftId, body: Body) {
        send(&self.config, self.fitness.told, id, body);
    }

    /// Publishes the replica's status.
    fn publish(&mut self) {
        let raft = self.group.status();
        if self.applied == raft.last {
            self.flushing.note_all_applied();
        }
        let role = match raft.role {
            _ if raft.quarantined => Role::Quarantined,
            RaftRole::Leader => Role::Leader,
            RaftRole::Candidate => Role::Candidate,
            RaftRole::Follower if raft.membership.is_voter(raft.id) => Role::Follower,
            RaftRole::Follower => Role::Learner,
        };
        let mut status = self.shared.status.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.counts.note_role(status.role, role);
        let status = &mut *status;
        status.role = role;
        status.term = raft.term;
        status.applied = self.applied.index;
        status.committed = raft.commit;
        status.last = raft.last.index;
        status.log_entries = raft.last.index.saturating_sub(raft.base.index);
        status.log_bytes = raft.log_bytes;
        status.full = self.flushing.short_of() == Some(Shortage::Space);
        status.broken = false;
        status.readers = Readers::among(&raft, |id| self.config.site.is_reader(id));
        // This runs after each step, and names rarely change.
        let node_of = |id: RaftId| self.config.site.node_of(id).unwrap_or_default();
        if status.leader != raft.leader || status.leader_node.is_empty() {
            status.leader = raft.leader;
            status.leader_node = raft.leader.map(node_of).unwrap_or_default();
        }
        for (shown, ids) in
            [(&mut status.voters, &raft.membership.voters), (&mut status.learners, &raft.membership.learners)]
        {
            let is_same = shown.len() == ids.len()
                && shown.iter().zip(ids).all(|(member, id)| member.raft_id == *id && !member.node.is_empty());
            if !is_same {
                *shown = ids.iter().map(|id| Member { raft_id: *id, node: node_of(*id) }).collect();
            }
        }
        let note = fitness::note(&status.note, self.unfit());
        if status.note != note {
            status.note = note;
        }
    }

    /// Handles a failure of the state machine: damage quarantines this replica, any other error
    /// stops it.
    fn failed(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() != ErrorKind::Corrupted {
            return Err(error);
        }
        self.quarantine(self.applied.index, Digest::default(), Digest::default(), &error.chain())
    }
}

fn to_report(raft_index: u64, digest: Digest, want_answer: bool) -> DigestReport {
    DigestReport { raft_index, digest: convert::to_digest(&digest), want_answer }
}

/// Queues a message to a replica; `false` if there is no room for it.
fn send<M: StateMachine>(config: &Config<M>, unfit: bool, to: RaftId, body: Body) -> bool {
    let Some(node) = config.site.node_of(to) else { return false };
    let message = PeerMessage {
        cluster_id: Bytes::copy_from_slice(config.identity.cluster.as_bytes()),
        group: config.identity.group.number(),
        from_raft_id: config.identity.raft_id.0,
        to_raft_id: to.0,
        unfit,
        body: Some(body),
    };
    config.site.peers.send(&node, message)
}

#[cfg(test)]
mod tests;
