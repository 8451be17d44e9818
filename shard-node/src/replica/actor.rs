//! The steps of a replica: take what arrived, tick, let raft advance, apply, compare, answer, flush.

mod apply;
mod cold;
mod doubt;
mod fitness;
mod requests;

use std::{
    cell::Cell,
    collections::{BTreeSet, VecDeque},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_consensus::{Beside, Committed, Group, Message, Output, Position, RaftId, Role, Writing};
use coppice_env::Shortage;
use coppice_proto::v1::{DigestReport, MergeReport, PeerMessage, peer_message::Body};
use coppice_types::{Digest, ErrorKind, Reason};
use opentelemetry::KeyValue;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::JoinHandle;

use super::{
    handle::{Answer, Input, Member, Shared, Status},
    start::Config,
    waiters::{Reads, Waiters},
};
use crate::{
    Error, convert,
    node::metrics::group_label,
    refusal::Refusal,
    replica::agreement::{Agreements, Verdict, Voters},
    replica::home::{Home, IncomingCopy},
    replica::machine::{Backlog, StateMachine, catch_up, foresee},
};

use cold::Cold;
use doubt::Check;
use fitness::Fitness;

/// Ticks after which a lost ReadIndex is sent again.
const READ_RETRY_TICKS: u32 = 4;
/// Ticks between two rounds of what is repeated: open digests, merges, care of snapshots.
const CARE_TICKS: u64 = 10;
/// Digests that are repeated in one round.
const REPEATED_MAX: usize = 64;
/// How soon this thread tries again when a reader is in its way.
const BLOCKED_WAIT: Duration = Duration::from_millis(1);
/// After a step of background work that can wait, the thread rests so many times as long as it took, and for a tick at most: readers have
/// the state machine then.
const WORK_REST: u32 = 2;
/// But no shorter than this: a step may find that it has to wait for another thread.
const WORK_REST_MIN: Duration = Duration::from_micros(250);
/// Work that must not wait goes on for this part of a tick at most: else commands that come without a break would leave it ever further
/// behind, until they have to wait for all of it.
const CATCH_UP_PART: u32 = 4;
/// Ticks to make up for at once after a pause; a longer one is not made up for.
const LATE_TICKS_MAX: u32 = 4;

/// Everything that what drives a replica owns.
pub(super) struct Actor<M: StateMachine> {
    pub(super) config: Config<M>,
    pub(super) shared: Arc<Shared<M>>,
    pub(super) home: Home,
    pub(super) group: Group,
    pub(super) applied: Position,
    pub(super) agreements: Agreements,
    pub(super) touched: BTreeSet<u64>,
    pub(super) voters: Voters,
    pub(super) members: Vec<RaftId>,
    /// Committed entries that are not applied yet.
    pub(super) backlog: VecDeque<Committed>,
    /// How long the state machine took for what it has not applied since.
    pub(super) looked_ahead: Duration,
    /// A reader was in the way of this thread.
    blocked: Cell<bool>,
    /// There is background work left.
    work_at: Option<Duration>,
    /// Of what is measured here.
    pub(super) labels: [KeyValue; 1],
    pub(super) waiters: Waiters<M::Reply>,
    pub(super) reads: Reads,
    pub(super) leading: bool,
    /// The pin of the snapshot that raft hands out.
    pub(super) pinned: Option<u64>,
    /// A follower wants a snapshot at this entry or later, and none is pinned yet.
    pub(super) wanted: Option<u64>,
    /// When it was pinned.
    pub(super) pinned_at: Duration,
    /// When raft last sent a snapshot, or one was pinned.
    pub(super) snapshot_used_at: Duration,
    /// The check of a pinned snapshot that another replica refused, and when the next one may begin.
    pub(super) check: Option<Check>,
    pub(super) next_check: Duration,
    /// The snapshot that is being fetched, and whose it is.
    pub(super) fetching: Option<(IncomingCopy, RaftId, JoinHandle<()>)>,
    /// The snapshot that is complete, and that raft was told to take.
    pub(super) incoming: Option<IncomingCopy>,
    pub(super) flushed_at: Duration,
    pub(super) unflushed_entries: u64,
    /// A write failed because this ran out: no new versions are taken until the machine is flushed and a reserve is there.
    pub(super) short_of: Option<Shortage>,
    pub(super) fitness: Fitness,
    pub(super) cold: Cold,
    pub(super) ended: bool,
    next_tick: Duration,
    pub(super) ticks: u64,
    pub(super) retiring: Option<(u64, Answer<()>)>,
}

impl<M: StateMachine> Actor<M> {
    pub(super) fn new(config: Config<M>, shared: Arc<Shared<M>>, home: Home, group: Group, applied: Position) -> Self {
        let now = config.hosted.clock.now();
        let labels = [group_label(config.identity.group)];
        let mut actor = Self {
            agreements: Agreements::new(config.identity.raft_id),
            config,
            shared,
            home,
            group,
            applied,
            touched: BTreeSet::new(),
            voters: Voters::default(),
            members: Vec::new(),
            backlog: VecDeque::new(),
            looked_ahead: Duration::ZERO,
            blocked: Cell::new(false),
            work_at: None,
            labels,
            waiters: Waiters::new(),
            reads: Reads::default(),
            leading: false,
            pinned: None,
            wanted: None,
            pinned_at: now,
            snapshot_used_at: now,
            check: None,
            next_check: now,
            fetching: None,
            incoming: None,
            flushed_at: now,
            unflushed_entries: 0,
            short_of: None,
            fitness: Fitness::default(),
            cold: Cold::default(),
            ended: false,
            next_tick: now,
            ticks: 0,
            retiring: None,
        };
        actor.note_members();
        actor
    }

    /// The state machine, once all readers have left it. For what is rare: the thread does nothing else meanwhile.
    pub(super) fn machine(&self) -> RwLockWriteGuard<'_, Option<M>> {
        self.shared.gate.close();
        let machine = self.shared.machine.write();
        self.shared.gate.open();
        machine
    }

    /// The state machine, unless a reader has it: then no new ones are let in, and the thread is to try again soon.
    pub(super) fn try_machine(&self) -> Option<RwLockWriteGuard<'_, Option<M>>> {
        match self.shared.machine.try_write() {
            Some(machine) => {
                self.shared.gate.open();
                Some(machine)
            }
            None => {
                self.shared.gate.close();
                self.blocked.set(true);
                None
            }
        }
    }

    /// The state machine, to look at. Only this thread writes, so this never waits.
    pub(super) fn read_machine(&self) -> RwLockReadGuard<'_, Option<M>> {
        self.shared.machine.read()
    }

    pub(super) fn now(&self) -> Duration {
        self.config.hosted.clock.now()
    }

    /// What comes before the first step.
    ///
    /// # Errors
    /// If the replica can't run.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.take_reserve()?;
        // Nodes are mostly started in the order of their ids: the last one need not wait for a timeout to ask for votes. If there is
        // a leader, nobody answers.
        if self.voters.incoming.iter().max() == Some(&self.config.identity.raft_id)
            && let Err(error) = self.group.campaign()
        {
            tracing::debug!(%error, "no early campaign");
        }
        Ok(())
    }

    /// The mailbox is closed, or the replica was removed or has retired.
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.shared.mailbox.is_closed()
    }

    /// How long the next step may wait for something to arrive.
    pub(super) fn wait(&self) -> Duration {
        let next = self.work_at.map_or(self.next_tick, |at| at.min(self.next_tick));
        let limit = if self.blocked.take() { BLOCKED_WAIT } else { Duration::MAX };
        next.saturating_sub(self.now()).min(limit)
    }

    /// One round of everything, with what has arrived.
    ///
    /// # Errors
    /// If something failed that the replica cannot go on from.
    pub(super) fn step(&mut self, inputs: Vec<Input<M>>) -> Result<(), Error> {
        let idle = inputs.is_empty();
        for input in inputs {
            self.input(input)?;
        }
        self.tick()?;
        self.send_read_index();
        self.advance()?;
        self.apply_backlog()?;
        self.compare()?;
        self.flush_if_due()?;
        self.move_cold();
        self.hand_over_if_unfit();
        self.publish();
        self.work_at = self.work(idle)?;
        if !self.blocked.get() {
            // Not every step that found a reader in the way has something to come back for.
            self.shared.gate.open();
        }
        Ok(())
    }

    /// What is left to wait for when the replica is over: the fetch of a snapshot.
    pub(super) fn leave(&mut self) -> Option<JoinHandle<()>> {
        self.fetching.take().map(|(_, _, fetch)| fetch)
    }

    fn input(&mut self, input: Input<M>) -> Result<(), Error> {
        match input {
            Input::Peer(message, node) => self.peer(message, &node)?,
            Input::Unreachable(node) => {
                let there = self.members.iter().filter(|id| self.config.hosted.node_of(id.0).as_deref() == Some(&node));
                for id in there.copied().collect::<Vec<_>>() {
                    self.group.report_unreachable(id);
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
        let tick = self.config.hosted.tuning.tick;
        if now > self.next_tick + tick * LATE_TICKS_MAX {
            self.next_tick = now;
        }
        while now >= self.next_tick {
            self.group.tick();
            self.next_tick += tick;
            self.ticks += 1;
            self.look_after_fitness();
            self.scrub()?;
            self.grant_cold();
            if self.ticks.is_multiple_of(CARE_TICKS) {
                self.care()?;
            }
        }
        self.reads.retry(now.saturating_sub(tick * READ_RETRY_TICKS));
        let follows = || self.group.status().leader.is_some_and(|leader| leader.0 != self.config.identity.raft_id);
        if self.retiring.as_ref().is_some_and(|(until, _)| self.ticks >= *until || follows())
            && let Some((_, answer)) = self.retiring.take()
        {
            self.ended = true;
            self.flush()?;
            drop(answer.send(Ok(())));
        }
        Ok(())
    }

    /// Checks a tick's share of what is durable, unless a reader has the state machine.
    fn scrub(&mut self) -> Result<(), Error> {
        let tuning = &self.config.hosted.tuning;
        let bytes = u128::from(tuning.scrub_bytes_per_s) * tuning.tick.as_millis() / 1000;
        let scrubbed = match self.shared.machine.try_write() {
            Some(mut machine) if bytes > 0 => {
                machine.as_mut().map_or(Ok(()), |machine| machine.scrub(u64::try_from(bytes).unwrap_or(u64::MAX)))
            }
            _ => Ok(()),
        };
        scrubbed.or_else(|error| self.failed(error))
    }

    /// What is repeated because messages may be lost.
    fn care(&mut self) -> Result<(), Error> {
        for (index, own) in self.agreements.overdue(REPEATED_MAX) {
            self.broadcast(&Body::Digest(to_report(index, own, true)));
        }
        let built = self.read_machine().as_ref().map(StateMachine::built).unwrap_or_default();
        if !built.is_empty() {
            self.broadcast(&Body::Merge(MergeReport { built }));
        }
        self.waiters.sweep();
        self.care_for_snapshots()
    }

    fn send_read_index(&mut self) {
        if self.reads.wants_index() && self.read_machine().is_some() {
            match self.group.read_index() {
                Ok(id) => self.reads.sent(id, self.now()),
                Err(error) => tracing::trace!(%error, "no read index now"),
            }
        }
    }

    /// Lets raft do what is due: send, sync, commit; and applies what it gives. While a large batch is written to the log, the state machine
    /// looks ahead at it.
    pub(super) fn advance(&mut self) -> Result<(), Error> {
        while self.group.has_ready() {
            let (mut unsent, mut worked) = (Vec::new(), Ok(()));
            let (config, shared, unfit) = (&self.config, &self.shared, self.fitness.told);
            let mut send = |message: Message| {
                let to = message.to();
                if !send(config, unfit, to.0, Body::Raft(message.encode().into())) {
                    unsent.push((to, message.is_snapshot()));
                }
            };
            // What is committed and waits comes first.
            let (waits, looked_ahead) = (!self.backlog.is_empty(), &mut self.looked_ahead);
            let backlog = if self.short_of.is_some() { Backlog::Behind } else { Backlog::Some };
            let mut meanwhile = |writing: &Writing<'_>| {
                if !waits && worked.is_ok() {
                    let began = config.hosted.clock.now();
                    foresee(&shared.machine, writing.commands);
                    *looked_ahead += config.hosted.clock.now().saturating_sub(began);
                    worked = catch_up(&shared.machine, backlog, writing.goes_on);
                }
            };
            let times = Mutex::new(Vec::new());
            let note = |_| times.lock().push(config.hosted.clock.now());
            let workers = config.hosted.tuning.engine.workers;
            let beside = Beside { workers, meanwhile: &mut meanwhile, writes: &note };
            let output = self.group.advance_beside(&mut send, beside)?;
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
            self.leading = change.role == Role::Leader;
        }
        if let Some(install) = output.install {
            self.install(install.position)?;
        }
        self.backlog.extend(output.committed);
        self.apply_backlog()?;
        for read in output.reads {
            self.reads.ready(read.id, read.index);
        }
        if let Some(offer) = output.snapshot_offer {
            self.take_in(offer)?;
        }
        if let Some(position) = output.snapshot_discarded {
            self.discarded(position)?;
        }
        if let Some(index) = output.snapshot_wanted {
            self.want_pin(index)?;
        }
        if output.removed {
            self.ended = true;
            self.shared.status.write().unwrap_or_else(PoisonError::into_inner).note =
                "removed from the group".to_owned();
        }
        Ok(())
    }

    /// Compares outcomes, answers those that a majority shares, and quarantines this replica if a majority has another one.
    fn compare(&mut self) -> Result<(), Error> {
        for index in std::mem::take(&mut self.touched) {
            if let Verdict::Diverged(majority) = self.agreements.verdict(index, &self.voters) {
                let own = self.agreements.own(index).unwrap_or_default();
                self.quarantine(index, own, majority, "another digest than the majority's")?;
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

    /// Closes the state machine for good; raft notes it, and asks for a snapshot until one is installed.
    pub(super) fn quarantine(&mut self, index: u64, own: Digest, majority: Digest, note: &str) -> Result<(), Error> {
        if self.group.quarantined().is_some() {
            return Ok(());
        }
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
        self.shared.status.write().unwrap_or_else(PoisonError::into_inner).note = evidence;
        Ok(())
    }

    /// Lets the state machine go, with all that depends on it.
    pub(super) fn close(&mut self) {
        self.unpin();
        self.check = None;
        *self.machine() = None;
    }

    /// The state machine is that of a snapshot now.
    pub(super) fn installed(&mut self, position: Position) {
        self.applied = position;
        self.backlog.clear();
        self.unflushed_entries = 0;
        self.agreements = Agreements::new(self.config.identity.raft_id);
        self.shared.status.write().unwrap_or_else(PoisonError::into_inner).note.clear();
        self.group.applied(position.index);
        self.shared.applied.send_replace(position.index);
        self.shared.traffic.installed.fetch_add(1, Ordering::Relaxed);
        self.note_members();
        tracing::info!(group = %self.config.identity.group, index = position.index, "a snapshot was installed");
    }

    pub(super) fn note_members(&mut self) {
        let membership = self.group.status().membership;
        let ids = |list: &[RaftId]| list.iter().map(|id| id.0).collect();
        self.voters = Voters { incoming: ids(&membership.voters), outgoing: ids(&membership.voters_outgoing) };
        let all = [&membership.voters, &membership.voters_outgoing, &membership.learners, &membership.learners_next];
        self.members = all.into_iter().flatten().copied().collect();
        self.members.sort_unstable();
        self.members.dedup();
    }

    pub(super) fn broadcast(&self, body: &Body) {
        for id in self.members.iter().filter(|id| id.0 != self.config.identity.raft_id) {
            send(&self.config, self.fitness.told, id.0, body.clone());
        }
    }

    pub(super) fn send_to(&self, id: u64, body: Body) {
        send(&self.config, self.fitness.told, id, body);
    }

    /// Shows how the replica does.
    fn publish(&self) {
        let raft = self.group.status();
        let member = |id: &RaftId| Member { raft_id: id.0, node: self.config.hosted.node_of(id.0).unwrap_or_default() };
        let leader = raft.leader.map_or(0, |id| id.0);
        let role = match raft.role {
            _ if raft.quarantined => "quarantined",
            Role::Leader => "leader",
            Role::Candidate => "candidate",
            Role::Follower if raft.membership.is_voter(raft.id) => "follower",
            Role::Follower => "learner",
        };
        let mut status = self.shared.status.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.counts.note_role(status.role, role);
        let note = fitness::note(&status.note, self.unfit());
        *status = Status {
            role,
            term: raft.term,
            leader,
            leader_node: self.config.hosted.node_of(leader).unwrap_or_default(),
            applied: self.applied.index,
            committed: raft.commit,
            last: raft.last.index,
            log_entries: raft.last.index.saturating_sub(raft.base.index),
            log_bytes: raft.log_bytes,
            full: self.short_of == Some(Shortage::Space),
            broken: false,
            voters: raft.membership.voters.iter().map(member).collect(),
            learners: raft.membership.learners.iter().map(member).collect(),
            note,
        };
    }

    /// Background work of the state machine, when nothing else is to be done or it is behind. When there may be more to do, if there is.
    fn work(&mut self, idle: bool) -> Result<Option<Duration>, Error> {
        let backlog = self.read_machine().as_ref().map_or(Backlog::None, StateMachine::backlog);
        let (began, due) = (self.now(), self.work_at.unwrap_or_default());
        match backlog {
            Backlog::None => return Ok(None),
            // It would have more and more to write. What a command waits for goes on.
            Backlog::Waiting | Backlog::Some if self.short_of.is_some() => return Ok(None),
            // Soon, if nothing else arrives.
            Backlog::Waiting | Backlog::Some if !idle || began < due => return Ok(Some(due)),
            Backlog::Waiting | Backlog::Some => {}
            Backlog::Behind => {
                if self.try_machine().is_none() {
                    return Ok(None);
                }
                let until = began + self.config.hosted.tuning.tick / CATCH_UP_PART;
                return match catch_up(&self.shared.machine, Backlog::Behind, &|| self.now() < until) {
                    Err(error) => self.work_failed(error).map(|()| None),
                    Ok(()) => Ok(Some(began)),
                };
            }
        }
        let worked = match self.try_machine().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.work(),
            None => return Ok(None),
        };
        match worked {
            Err(error) => self.work_failed(error).map(|()| None),
            Ok(()) => {
                let now = self.now();
                let rest = (WORK_REST * (now - began)).max(WORK_REST_MIN).min(self.config.hosted.tuning.tick);
                Ok(Some(now + rest))
            }
        }
    }

    /// Background work waits for what ran out; else it is a failure as any other.
    fn work_failed(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() == ErrorKind::Exhausted { Ok(()) } else { self.failed(error) }
    }

    /// Damage quarantines this replica; anything else that fails stops it.
    pub(super) fn failed(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() != ErrorKind::Corrupted {
            return Err(error);
        }
        self.quarantine(self.applied.index, Digest::default(), Digest::default(), &error.chain())
    }

    pub(super) fn handed_out_at(&self) -> Duration {
        Duration::from_millis(self.shared.fetched_ms.load(Ordering::Relaxed))
    }
}

pub(super) fn to_report(raft_index: u64, digest: Digest, want_answer: bool) -> DigestReport {
    DigestReport { raft_index, digest: convert::to_bytes(&digest), want_answer }
}

/// Queues a message to a replica; `false` if it is lost here already.
fn send<M: StateMachine>(config: &Config<M>, unfit: bool, to: u64, body: Body) -> bool {
    let Some(node) = config.hosted.node_of(to) else { return false };
    let message = PeerMessage {
        cluster_id: Bytes::copy_from_slice(config.identity.cluster.as_bytes()),
        group: config.identity.group.number(),
        from_raft_id: config.identity.raft_id,
        to_raft_id: to,
        unfit,
        body: Some(body),
    };
    config.hosted.peers.send(&node, message)
}
