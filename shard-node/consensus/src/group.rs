//! The group: raft, its log, and the code between them and the caller.
//!
//! ```text
//!  caller --- requests, step ---> raft --- advance ---> log, messages, Output
//!                                  ^
//!             snapshot, offer -----+   (a leader's snapshot is kept back until its files are here)
//! ```
//!
//! [`Group::advance`] is the one place that decides the order of durability. A crash at any point
//! leaves a log that [`Group::open`] continues from. Entries that were handed out are handed out
//! again unless the state machine has them durably.

mod advance;
mod offer;
mod requests;
mod snapshot;
mod step;
mod suspicion;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_env::{Rng, Storage};
use coppice_types::{ClusterId, GroupId};
use raft::{Progress, ProgressState, RawNode, StateRole};

use self::{offer::Offer, suspicion::Suspicion};
use crate::{
    Membership, Options, Position, RaftId, change,
    error::{Error, Result},
    log::{Log, batch::HardState, meta::Owner},
    logger::logger,
    output::{LogReport, Peer, ReadId, Role, RoleChange, Status},
    store::Store,
    width::to_usize,
};

/// Limit on the bytes of evidence of a divergence.
const EVIDENCE_BYTES_MAX: usize = 1 << 20;
/// A quarantined replica campaigns after all if it has had no leader for this many election
/// timeouts.
const LAST_RESORT_TIMEOUTS: usize = 10;
/// Room for an entry's header and for its share of the headers of blocks.
const ENTRY_OVERHEAD_BYTES: usize = 64;

/// One replica of a group. The head of the crate states the rules.
pub struct Group {
    options: Options,
    raw: RawNode<Store>,
    rng: Box<dyn Rng>,
    /// The election timeout that was drawn last.
    timeout_ticks: usize,
    ticks: u64,
    /// A random number that distinguishes this process's reads from those of earlier processes.
    read_nonce: u64,
    read_next: u64,
    /// Reads without an answer. The oldest are dropped when there are too many.
    reads: BTreeSet<ReadId>,
    /// The last entry that the state machine has applied.
    applied: u64,
    membership: Membership,
    offer: Option<Offer>,
    /// Whether the replica asks for a snapshot until one comes.
    snapshot_requested: bool,
    /// The term in which raft last asked for a snapshot.
    requested_in: u64,
    /// The tick until which the replica waits for an offer of that snapshot.
    waits_until: u64,
    /// The tick since which each replica is being sent a snapshot.
    snapshotting: BTreeMap<RaftId, u64>,
    /// Whether this replica lets the others campaign first.
    reluctant: bool,
    /// For how many ticks a quarantine has kept this replica from campaigning.
    held_ticks: usize,
    /// A leader that may be gone.
    suspicion: Option<Suspicion>,
    /// Whether an error occurred that leaves the state unknown.
    failed: bool,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("options", &self.options).field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Group {
    /// Whether a directory holds a log.
    ///
    /// # Errors
    /// If the directory can't be read, or its log has another format or is damaged.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        Ok(crate::log::meta::Meta::load(storage)?.is_some())
    }

    /// Checks every block of the log of a stopped replica, and changes nothing. Returns `None` if
    /// there is no log.
    ///
    /// # Errors
    /// If the log is damaged or another replica's, or can't be read.
    pub fn inspect(storage: &dyn Storage, cluster: ClusterId, group: GroupId, id: RaftId) -> Result<Option<LogReport>> {
        crate::log::recover::inspect(storage, &Owner { cluster, group, id })
    }

    /// Creates a replica of a new group. All initial voters are created with the same list, and
    /// their state machines start at [`Position::START`].
    ///
    /// # Errors
    /// If the directory holds a log, the list is wrong, or the storage fails.
    pub fn create(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>, voters: &[RaftId]) -> Result<Self> {
        let membership = Membership::of_voters(voters);
        if membership.check().is_err() || !membership.is_voter(options.id) {
            return Err(Error::Invalid("the voters of a new group must be distinct and include this replica"));
        }
        let log = Log::create(storage, options.sizes(), options.owner(), Position::START, membership.clone())?;
        Self::start(log, membership, options, rng, Position::START.index)
    }

    /// Creates an empty replica, under an id that was never used before. It waits to be added as a
    /// learner and to be sent a snapshot. Its state machine is empty, at position 0.
    ///
    /// # Errors
    /// If the directory holds a log, or the storage fails.
    pub fn create_empty(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>) -> Result<Self> {
        let membership = Membership::default();
        let log = Log::create(storage, options.sizes(), options.owner(), Position::default(), membership.clone())?;
        Self::start(log, membership, options, rng, 0)
    }

    /// Continues a replica whose state machine has durably applied `applied`. Committed entries
    /// after it are handed out again.
    ///
    /// # Errors
    /// [`Error::InstallPending`] if the installation of a snapshot was cut off. Other errors if the
    /// log is missing, another replica's or damaged, or does not fit `applied`.
    pub fn open(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>, applied: Position) -> Result<Self> {
        let log = Log::open(storage, options.sizes(), options.owner())?;
        let mut log = log.ok_or(Error::Existence("there is no raft log in this directory"))?;
        let (first, last) = (log.base(), log.last());
        if applied.index < first.index
            && let Some(manifest) = log.manifest()
        {
            return Err(Error::InstallPending { position: first, manifest: Bytes::copy_from_slice(manifest) });
        }
        let mismatch = |detail| Error::StateMismatch { machine: applied, first, last, detail };
        if applied.index < first.index {
            return Err(mismatch("entries that the machine lacks are gone"));
        }
        match log.term(applied.index) {
            None => return Err(mismatch("the machine has applied more than the log holds")),
            Some(term) if term != applied.term => return Err(mismatch("the machine has applied another entry")),
            Some(_) => {}
        }
        let state = log.hard_state();
        if state.commit < applied.index {
            // The commit index is not synced by itself, and an applied entry was committed.
            log.set_hard_state(HardState { commit: applied.index, ..state });
        }
        let membership = log.membership_at(applied.index).clone();
        Self::start(log, membership, options, rng, applied.index)
    }

    fn start(log: Log, membership: Membership, options: Options, mut rng: Box<dyn Rng>, applied: u64) -> Result<Self> {
        let snapshot_requested = log.quarantine().is_some();
        let store = Store::new(log, membership.clone());
        let raw = RawNode::new(&options.raft(applied), store, &logger());
        let raw = raw.map_err(|error| Error::Raft(error.to_string()))?;
        let read_nonce = rng.next_u64();
        let mut group = Self {
            options,
            raw,
            rng,
            timeout_ticks: options.election_ticks,
            ticks: 0,
            read_nonce,
            read_next: 0,
            reads: BTreeSet::new(),
            applied,
            membership,
            offer: None,
            snapshot_requested,
            requested_in: 0,
            waits_until: 0,
            snapshotting: BTreeMap::new(),
            reluctant: false,
            held_ticks: 0,
            suspicion: None,
            failed: false,
        };
        group.draw_timeout();
        Ok(group)
    }

    /// Draws a new election timeout when raft has drawn one. Raft's generator has no seed, so its
    /// timeout is replaced.
    fn draw_timeout(&mut self) {
        if self.raw.raft.election_elapsed == 0 {
            let least = self.options.election_ticks;
            let spread = self.rng.below(least as u64);
            let later = if self.reluctant { 2 * least } else { 0 };
            self.timeout_ticks = least + later + to_usize(spread);
            self.raw.raft.set_randomized_election_timeout(self.timeout_ticks);
        }
    }

    fn log(&self) -> &Log {
        &self.raw.store().log
    }

    fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    fn usable(&self) -> Result<()> {
        if self.failed { Err(Error::Unavailable("the raft log failed before")) } else { Ok(()) }
    }

    fn only_leader(&self) -> Result<()> {
        self.usable()?;
        if self.is_leader() {
            return Ok(());
        }
        Err(Error::NotLeader { leader: RaftId::from_raw(self.raw.raft.leader_id) })
    }

    /// Lets one tick pass.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // A quarantined replica is held just below its timeout. At that point the lease of a silent
        // leader is over, so the replica can vote for others. Its log is still sound. If no other
        // replica has the end of the log, no other one can be elected. Then it leads after all, and
        // hands over to a replica that has caught up.
        let held = self.quarantined().is_some()
            && !self.is_leader()
            && self.raw.raft.election_elapsed + 1 >= self.timeout_ticks;
        self.held_ticks = if held { self.held_ticks + 1 } else { 0 };
        if self.held_ticks > LAST_RESORT_TIMEOUTS * self.options.election_ticks && self.raw.raft.promotable() {
            self.held_ticks = 0;
            // If it can't be elected now, it tries again later.
            let _ = self.raw.campaign();
        } else if !held {
            self.raw.tick();
        }
        self.draw_timeout();
        self.hasten();
        self.leave_joint();
        self.report_lost_snapshots();
        self.put_voters_first();
        self.forget_early_requests();
        if self.snapshot_requested && self.offer.is_none() {
            self.ask_for_snapshot();
        }
        self.try_install();
    }

    /// Asks the leader for a snapshot.
    ///
    /// Raft appends nothing while it waits for a snapshot that covers its log. But a later leader
    /// may lack the end of that log, or may not know that this replica has it, and so may never
    /// commit it. Therefore the replica asks again in each term, once its log matches the leader's.
    /// After a while without an offer, entries are taken and acknowledged again before the next
    /// request.
    fn ask_for_snapshot(&mut self) {
        let (term, timeout) = (self.raw.raft.term, self.options.election_ticks as u64);
        let waited = self.requested_in == term && self.ticks >= self.waits_until;
        if waited || self.requested_in != term {
            self.raw.raft.pending_request_snapshot = 0;
        }
        if waited && self.ticks < self.waits_until + timeout {
            return;
        }
        // Raft refuses without a leader, or if it has asked already. The next tick asks again.
        if self.raw.request_snapshot().is_ok() {
            (self.requested_in, self.waits_until) = (term, self.ticks + 2 * timeout);
        }
    }

    /// Forgets requests for snapshots of entries that are not committed yet. A leader sends nothing
    /// else to a replica that waits for a snapshot. It can't make a snapshot of uncommitted
    /// entries, and it may need that very replica to commit them.
    fn forget_early_requests(&mut self) {
        if !self.is_leader() {
            return;
        }
        let committed = self.raw.raft.raft_log.committed;
        for (_, peer) in self.raw.raft.mut_prs().iter_mut() {
            if peer.pending_request_snapshot > committed {
                peer.pending_request_snapshot = 0;
            }
        }
    }

    /// Ends a joint membership if its leader was lost before applying it.
    fn leave_joint(&mut self) {
        let raft = &self.raw.raft;
        let due = self.is_leader() && self.membership.is_joint() && !raft.has_pending_conf();
        if due && raft.lead_transferee.is_none() {
            // If the proposal is dropped, the next tick proposes again.
            let _ = self.raw.propose_conf_change(Vec::new(), change::to_raft(&[]));
        }
    }

    /// Reports snapshot offers that were lost. Until raft gets a report, it sends nothing else to
    /// that replica.
    fn report_lost_snapshots(&mut self) {
        if !self.is_leader() {
            self.snapshotting.clear();
            return;
        }
        let now = self.ticks;
        let max = self.options.snapshot_ticks_max;
        let raft = &self.raw.raft;
        let stuck = |id: &RaftId| raft.prs().get(id.0).is_some_and(|peer| peer.state == ProgressState::Snapshot);
        self.snapshotting.retain(|id, _| stuck(id));
        let lost: Vec<RaftId> =
            self.snapshotting.iter().filter(|(_, since)| now - **since > max).map(|(id, _)| *id).collect();
        for id in lost {
            self.report_snapshot(id, false);
        }
    }

    /// Lets learners wait for another snapshot while a voter is being sent one: only one is pinned
    /// at a time, and a pin that is replaced ends the voter's transfer. Raft repeats their wish.
    fn put_voters_first(&mut self) {
        let raft = &self.raw.raft;
        let votes = |id: &u64| self.membership.is_voter(RaftId(*id));
        let sent = |(id, peer): (&u64, &Progress)| votes(id) && peer.state == ProgressState::Snapshot;
        let mut patient = self.raw.store().patient.borrow_mut();
        patient.clear();
        if self.is_leader() && raft.prs().iter().any(sent) {
            patient.extend(self.membership.learners.iter().copied());
        }
    }

    fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    fn role_change(&self) -> RoleChange {
        RoleChange { role: self.role(), leader: RaftId::from_raw(self.raw.raft.leader_id), term: self.raw.raft.term }
    }

    /// The status of this replica and, on a leader, of the others.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let mut peers = Vec::new();
        if self.is_leader() {
            for (id, peer) in raft.prs().iter().filter(|(id, _)| **id != raft.id) {
                peers.push(Peer {
                    id: RaftId(*id),
                    learner: !self.membership.is_voter(RaftId(*id)),
                    matched: peer.matched,
                    active: peer.recent_active,
                    snapshotting: peer.state == ProgressState::Snapshot,
                });
            }
        }
        peers.sort_by_key(|peer| peer.id);
        Status {
            id: self.options.id,
            role: self.role(),
            leader: RaftId::from_raw(raft.leader_id),
            term: raft.term,
            commit: raft.raft_log.committed,
            applied: self.applied,
            base: self.log().base(),
            last: self.log().last(),
            log_bytes: self.log().disk_bytes(),
            membership: self.membership.clone(),
            peers,
            quarantined: self.quarantined().is_some(),
        }
    }
}
