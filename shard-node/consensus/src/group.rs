//! The group: raft, its log, and what lies between them and the caller.
//!
//! [`Group::advance`] is the one place where the order of durability is decided. A crash at any point leaves a log that
//! [`Group::open`] continues from; entries that were handed out are handed out again if the state machine does not have
//! them durably.

mod advance;
mod offer;
mod requests;
mod snapshot;
mod step;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_env::{Rng, Storage};
use coppice_types::{ClusterId, GroupId};
use raft::{ProgressState, RawNode, StateRole};

use self::offer::Offer;
use crate::{
    Membership, Options, Position, RaftId, change,
    error::{Error, Result},
    log::{Log, batch::HardState, meta::Owner},
    logger::logger,
    output::{LogReport, Peer, ReadId, Role, RoleChange, Status},
    store::Store,
    width::to_usize,
};

/// What evidence of a divergence may take.
const EVIDENCE_BYTES_MAX: usize = 1 << 20;
/// A quarantined replica that nobody has led for so many election timeouts campaigns all the same.
const LAST_RESORT_TIMEOUTS: usize = 10;
/// Room for an entry's header and its share of its blocks' headers.
const ENTRY_OVERHEAD_BYTES: usize = 64;

/// One replica of a group. See the crate's head for the rules.
pub struct Group {
    options: Options,
    raw: RawNode<Store>,
    rng: Box<dyn Rng>,
    /// The election timeout that was drawn last.
    timeout_ticks: usize,
    ticks: u64,
    /// Distinguishes this process's reads from those of the one before.
    read_nonce: u64,
    read_next: u64,
    /// Reads without an answer, of which the oldest are forgotten.
    reads: BTreeSet<ReadId>,
    /// What the state machine has applied.
    applied: u64,
    membership: Membership,
    offer: Option<Offer>,
    /// Snapshots are asked for until one comes.
    snapshot_requested: bool,
    /// The term in which raft asked for one,
    requested_in: u64,
    /// and until which tick it waits for it.
    waits_until: u64,
    /// Since which tick each replica is being sent a snapshot.
    snapshotting: BTreeMap<RaftId, u64>,
    /// It leaves it to the others to campaign first.
    reluctant: bool,
    /// For so many ticks a quarantine has kept it from campaigning.
    held_ticks: usize,
    /// An error after which nothing is certain.
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
    /// If it can't be read.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        Ok(crate::log::meta::Meta::load(storage)?.is_some())
    }

    /// Checks the log of a replica that is stopped, every block of it, and changes nothing; `None` if there is none.
    ///
    /// # Errors
    /// If it is damaged, another's, or can't be read.
    pub fn inspect(storage: &dyn Storage, cluster: ClusterId, group: GroupId, id: RaftId) -> Result<Option<LogReport>> {
        crate::log::recover::inspect(storage, &Owner { cluster, group, id })
    }

    /// Makes a replica of a group that genesis does not know yet. All initial voters are made with the same list, and
    /// their state machines start at [`Position::START`].
    ///
    /// # Errors
    /// If the directory holds a log, the list is wrong, or the storage fails.
    pub fn create(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>, voters: &[RaftId]) -> Result<Self> {
        let membership = Membership::of_voters(voters);
        if membership.check().is_err() || !membership.is_voter(options.id) {
            return Err(Error::Invalid("the voters of a new group are distinct and this replica is one of them"));
        }
        let log = Log::create(storage, options.sizes(), options.owner(), Position::START, membership.clone())?;
        Self::start(log, membership, options, rng, Position::START.index)
    }

    /// Makes a replica that knows nothing, under an id never used before: it waits to be added as a learner and for a
    /// snapshot. Its state machine is empty, at position 0.
    ///
    /// # Errors
    /// If the directory holds a log, or the storage fails.
    pub fn create_empty(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>) -> Result<Self> {
        let membership = Membership::default();
        let log = Log::create(storage, options.sizes(), options.owner(), Position::default(), membership.clone())?;
        Self::start(log, membership, options, rng, 0)
    }

    /// Continues a replica whose state machine has `applied` durably. Committed entries after it are handed out again.
    ///
    /// # Errors
    /// [`Error::InstallPending`] if the installation of a snapshot was cut off; else if the log is missing, another's,
    /// damaged, or does not fit `applied`.
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
            // The commit index is not synced by itself, and what was applied was committed.
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
            failed: false,
        };
        group.draw_timeout();
        Ok(group)
    }

    /// Raft draws its election timeouts from a generator that no seed reaches: replaces each new one by ours.
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
        Err(Error::NotLeader { leader: RaftId::of(self.raw.raft.leader_id) })
    }

    /// Lets one tick pass.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // A quarantined replica does not reach its timeout. It stays just below, where the lease of a silent leader is
        // over, so that it can vote for others. Its log is sound, though, and where it alone has the end of it, nobody else
        // can be elected: then it leads after all, and hands over to a replica that has caught up.
        let held = self.quarantined().is_some()
            && !self.is_leader()
            && self.raw.raft.election_elapsed + 1 >= self.timeout_ticks;
        self.held_ticks = if held { self.held_ticks + 1 } else { 0 };
        if self.held_ticks > LAST_RESORT_TIMEOUTS * self.options.election_ticks {
            self.held_ticks = 0;
            // One that can't be elected now tries again.
            let _ = self.raw.campaign();
        } else if !held {
            self.raw.tick();
        }
        self.draw_timeout();
        self.leave_joint();
        self.report_lost_snapshots();
        self.forget_early_requests();
        if self.snapshot_requested && self.offer.is_none() {
            self.ask_for_snapshot();
        }
        self.try_install();
    }

    /// Raft appends nothing while it waits for a snapshot that covers its log. A later leader may never have the end of that log, and this one may
    /// not know that it is here, and so not commit it: each term asks anew, once the log matches that of its leader, and after a while without an
    /// offer entries are taken again, and acknowledged, before the next question.
    fn ask_for_snapshot(&mut self) {
        let (term, timeout) = (self.raw.raft.term, self.options.election_ticks as u64);
        let waited = self.requested_in == term && self.ticks >= self.waits_until;
        if waited || self.requested_in != term {
            self.raw.raft.pending_request_snapshot = 0;
        }
        if waited && self.ticks < self.waits_until + timeout {
            return;
        }
        // Refused without a leader, or while one was asked for already: then the next tick asks again.
        if self.raw.request_snapshot().is_ok() {
            (self.requested_in, self.waits_until) = (term, self.ticks + 2 * timeout);
        }
    }

    /// A leader sends nothing else to whom it owes a snapshot. One beyond what is committed it can't make, and if its commit needs that very
    /// replica, it never could.
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

    /// A leader that fell before it had applied a joint membership leaves it to the next one to end it.
    fn leave_joint(&mut self) {
        let raft = &self.raw.raft;
        let due = self.is_leader() && self.membership.is_joint() && !raft.has_pending_conf();
        if due && raft.lead_transferee.is_none() {
            // If it is dropped, the next tick proposes it again.
            let _ = self.raw.propose_conf_change(Vec::new(), change::to_raft(&[]));
        }
    }

    /// Raft sends nothing to a replica that was offered a snapshot until it hears what became of it.
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

    fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    fn role_change(&self) -> RoleChange {
        RoleChange { role: self.role(), leader: RaftId::of(self.raw.raft.leader_id), term: self.raw.raft.term }
    }

    /// How this replica and, on a leader, the others stand.
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
            leader: RaftId::of(raft.leader_id),
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
