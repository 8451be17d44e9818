//! Forming a version: which waiting batches it takes, which are refused, and which keep waiting.
//!
//! Batches are judged in the order in which they came, each as if all batches taken before it had
//! been applied. A key's state comes from the writes of the draft, else from the undecided writes
//! below it, else from the state that was read at the newest staged version. After an abort the
//! same function judges the remaining batches again, in the same order. No earlier verdict is kept.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

use bytes::Bytes;
use coppice_types::{Change, Condition, Digest, Operation, Reason, SessionId, ShardId, Stamp};
use coppice_verify::ledgers::{Appended, Checked, Closed, Content, Round, is_judged_by};

use super::{
    refusal::Refusal,
    request::{Check, Request, Write},
    session::{Done, NumberStanding, Sessions},
};

/// The state of a key, as far as preconditions can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The key has no live value.
    Absent,
    /// The key has a live value.
    Live {
        /// The commit that changed the key last.
        last_changed: Stamp,
        /// SHA-256 of the value.
        value_hash: Digest,
    },
}

/// Undecided writes by key: the newest of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    writes: BTreeMap<Bytes, KeyState>,
    /// Values of the reserved keys that requests of members are judged by; `None` for deleted ones.
    values: BTreeMap<Bytes, Option<Bytes>>,
}

impl Overlay {
    /// Adds the writes of a batch at a version.
    pub fn apply(&mut self, request: &Request, stamp: Stamp) {
        for write in request.writes.values().flatten() {
            let state = match &write.put {
                Some(put) => KeyState::Live { last_changed: stamp, value_hash: put.value_hash },
                None => KeyState::Absent,
            };
            self.writes.insert(write.key.clone(), state);
        }
    }

    /// Adds what follows from requests of members.
    fn apply_operations(&mut self, operations: &[Operation]) {
        for Operation { key, change } in operations.iter().filter(|operation| is_judged_by(&operation.key)) {
            let value = match change {
                Change::Put(value) => Some(value.clone()),
                Change::Delete => None,
            };
            self.values.insert(key.clone(), value);
        }
    }

    /// The value of a reserved key after the writes; none in it if they delete it. `None` if they
    /// do not touch it.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.values.get(key)
    }

    /// The state of a key after the writes. `None` if they do not touch it.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<KeyState> {
        self.writes.get(key).copied()
    }
}

/// The shards that batches wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Shards that take no writes until a merge is installed.
    pub full: BTreeSet<ShardId>,
    /// Shards that are not adopted yet.
    pub starting: BTreeSet<ShardId>,
}

impl Blocked {
    /// Whether a batch waits for one of the shards.
    fn holds(&self, request: &Request) -> bool {
        request.written().any(|shard| self.full.contains(shard))
            || request.involved.iter().any(|shard| self.starting.contains(shard))
    }
}

/// Keys as they were read at the newest staged version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysRead {
    /// The states of the keys of preconditions.
    pub states: BTreeMap<Bytes, KeyState>,
    /// The values of reserved keys; `None` for a key without a record.
    pub values: BTreeMap<Bytes, Option<Bytes>>,
}

/// The facts that a version is formed from.
#[derive(Debug)]
pub struct Ground<'a> {
    /// The version to form.
    pub stamp: Stamp,
    /// The time now. The version's header is not older.
    pub now_ms: u64,
    /// The newest sequenced version, decided or not. The formed version comes right after it.
    pub below: Stamp,
    /// Undecided writes of the versions below.
    pub overlay: &'a Overlay,
    pub reads: &'a KeysRead,
    /// The committed numbers of sessions.
    pub sessions: &'a Sessions,
    /// Session numbers that are being decided.
    pub in_flight: &'a BTreeSet<(SessionId, u64)>,
    /// The shards that batches wait for.
    pub blocked: &'a Blocked,
    /// Shards that do not answer.
    pub down: &'a BTreeSet<ShardId>,
    /// Number of keys that further versions may erase in each shard.
    pub erasures_left: &'a BTreeMap<ShardId, u64>,
    /// Limit on the bytes of operations in prepares. A single batch may exceed it, up to its own
    /// limit.
    pub bytes_max: u64,
}

/// The verdict on one waiting batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The batch is part of the version.
    Taken,
    /// The batch waits for a later version.
    Waits,
    /// The batch was committed before.
    Known(Done),
    /// The batch is refused. The refusal is final once the versions that it was judged on are
    /// decided.
    Refused(Refusal),
}

/// The verdicts on the waiting batches, in order. Batches beyond the last verdict wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    pub verdicts: Vec<Verdict>,
    /// The writes of the taken batches.
    pub overlay: Overlay,
    /// The results of the taken requests of members, in the order of the requests.
    pub appended: Vec<Appended>,
    /// The ledgers that they append to, in the order of their ids.
    pub closed: Vec<Closed>,
    /// The time at which they were judged.
    pub now_ms: u64,
}

impl Draft {
    /// How many batches were taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.verdicts.iter().filter(|verdict| **verdict == Verdict::Taken).count()
    }
}

/// The longest run of waiting batches, from the first, that one version may be formed from. At most
/// `most` of them are free to be judged. Batches that wait for a shard, or for a batch of their
/// session that does, are included but not counted.
#[must_use]
pub fn in_reach<R: Borrow<Request>>(waiting: impl Iterator<Item = R>, blocked: &Blocked, most: usize) -> Vec<R> {
    let (mut free, mut held) = (0, BTreeSet::new());
    let reached = waiting.take_while(|request| {
        let request = request.borrow();
        let session = request.session.map(|(id, _)| id);
        if blocked.holds(request) || session.is_some_and(|id| held.contains(&id)) {
            held.extend(session);
        } else {
            free += 1;
        }
        free <= most
    });
    reached.collect()
}

/// The keys that must be read before these batches can be judged.
#[must_use]
pub fn keys_to_read<R: Borrow<Request>>(waiting: &[R], overlay: &Overlay, blocked: &Blocked) -> BTreeSet<Bytes> {
    let judged = waiting.iter().map(Borrow::borrow).filter(|request| !blocked.holds(request));
    let keys = judged.flat_map(|request| &request.checks).map(|check| &check.key);
    keys.filter(|key| overlay.get(key).is_none()).cloned().collect()
}

/// The reserved keys whose values must be read before these batches can be judged.
#[must_use]
pub fn values_to_read<R: Borrow<Request>>(waiting: &[R], overlay: &Overlay, blocked: &Blocked) -> BTreeSet<Bytes> {
    let judged = waiting.iter().map(Borrow::borrow).filter(|request| !blocked.holds(request));
    let appends = judged.filter_map(|request| request.append.as_ref());
    appends.flat_map(|append| append.reads()).map(Bytes::from).filter(|key| overlay.value(key).is_none()).collect()
}

/// The session numbers that the root group must be asked for before these batches can be judged.
#[must_use]
pub fn numbers_to_ask<R: Borrow<Request>>(waiting: &[R], sessions: &Sessions) -> BTreeSet<(SessionId, u64)> {
    let requests = waiting.iter().map(Borrow::borrow);
    let numbers = requests.flat_map(|request| request.session.into_iter().chain(request.predecessor()));
    numbers.filter(|(id, number)| sessions.standing(id, *number) == NumberStanding::Unknown).collect()
}

/// Forms a version from waiting batches.
///
/// # Panics
/// If a key of [`keys_to_read`] or [`values_to_read`] was not read and its shard is not in
/// `ground.down`.
#[must_use]
pub fn form<R: Borrow<Request>>(waiting: &[R], ground: &Ground<'_>) -> Draft {
    let value = |key: &[u8]| match ground.overlay.value(key) {
        Some(value) => value.clone(),
        None => ground.reads.values.get(key).expect("each reserved key was read, or its shard is down").clone(),
    };
    let mut former = Former {
        round: Round::new(&value, ground.stamp, ground.now_ms),
        ground,
        draft: Draft { now_ms: ground.now_ms, ..Draft::default() },
        seen: BTreeSet::new(),
        held: BTreeSet::new(),
        taken: BTreeSet::new(),
        spans: BTreeMap::new(),
        bytes: 0,
        erased: 0,
        closed: false,
    };
    for request in waiting.iter().map(Borrow::borrow) {
        let verdict = former.judge(request);
        if verdict == Verdict::Waits {
            former.held.extend(request.session.map(|(id, _)| id));
        }
        former.draft.verdicts.push(verdict);
        if former.closed {
            break;
        }
    }
    let Former { round, mut draft, .. } = former;
    draft.closed = round.close();
    let appended = draft.appended.iter().map(|appended| &appended.operations);
    let operations = appended.chain(draft.closed.iter().map(|closed| &closed.operations));
    operations.for_each(|operations| draft.overlay.apply_operations(operations));
    draft
}

struct Former<'a> {
    ground: &'a Ground<'a>,
    /// The part of ledgers of members.
    round: Round<'a>,
    draft: Draft,
    /// Session numbers that were judged in this draft.
    seen: BTreeSet<(SessionId, u64)>,
    /// Sessions with a batch that waits. Their later batches wait too, so that a stream keeps its
    /// order.
    held: BTreeSet<SessionId>,
    /// Session numbers that the draft takes.
    taken: BTreeSet<(SessionId, u64)>,
    /// Lowest and highest taken number of each session. All numbers of one version lie within one
    /// window.
    spans: BTreeMap<SessionId, (u64, u64)>,
    bytes: u64,
    /// Number of journals that the taken orders occult.
    erased: u64,
    closed: bool,
}

impl Former<'_> {
    fn judge(&mut self, request: &Request) -> Verdict {
        if let Some(verdict) = self.judge_session(request) {
            return verdict;
        }
        if request.involved.iter().any(|shard| self.ground.down.contains(shard)) {
            return Verdict::Refused(Refusal::new(Reason::Unavailable, "a shard of the batch does not answer"));
        }
        if self.ground.blocked.holds(request) {
            return Verdict::Waits;
        }
        let opened = self.bytes > 0;
        let opens = request.exclusive || request.expected_head.is_some();
        if opened && (opens || self.bytes + weight(request) > self.ground.bytes_max) {
            self.closed = true;
            return Verdict::Waits;
        }
        if let Err(refusal) = self.judge_content(request) {
            return Verdict::Refused(refusal);
        }
        self.bytes += weight(request);
        if let Some((id, number)) = request.session {
            self.taken.insert((id, number));
            let (low, high) = self.spans.entry(id).or_insert((number, number));
            (*low, *high) = ((*low).min(number), (*high).max(number));
        }
        self.draft.overlay.apply(request, self.ground.stamp);
        self.closed = request.exclusive;
        Verdict::Taken
    }

    /// The verdict that follows from the batch's session. `None` if the batch may be applied.
    fn judge_session(&mut self, request: &Request) -> Option<Verdict> {
        let (id, number) = request.session?;
        let apart = self.spans.get(&id).is_some_and(|(low, high)| {
            number.saturating_sub(*low).max(high.saturating_sub(number)) >= self.ground.sessions.window()
        });
        let seen = !self.seen.insert((id, number));
        if seen || apart || self.held.contains(&id) || self.ground.in_flight.contains(&(id, number)) {
            return Some(Verdict::Waits);
        }
        match self.ground.sessions.standing(&id, number) {
            NumberStanding::New => request.predecessor().and_then(|before| self.judge_order(before)),
            NumberStanding::Done(done) if done.batch_hash != request.batch_hash => Some(Verdict::Refused(
                Refusal::new(Reason::SessionMismatch, format!("number {number} was used for another batch")),
            )),
            NumberStanding::Done(done) if done.rolled_back => Some(Verdict::Refused(Refusal::new(
                Reason::RolledBack,
                format!("number {number} was committed and rolled back"),
            ))),
            NumberStanding::Done(done) => Some(Verdict::Known(done)),
            NumberStanding::Expired => Some(Verdict::Refused(Refusal::new(
                Reason::RequestExpired,
                format!("number {number} is below the session's window"),
            ))),
            NumberStanding::Unknown => Some(Verdict::Waits),
            NumberStanding::Ended => Some(Verdict::Refused(Refusal::new(
                Reason::UnknownSession,
                "the session was never opened, or has ended",
            ))),
        }
    }

    /// The verdict on a batch that follows this number of its session. `None` if it may be applied.
    fn judge_order(&self, before: (SessionId, u64)) -> Option<Verdict> {
        if self.taken.contains(&before) || self.ground.in_flight.contains(&before) {
            return None;
        }
        match self.ground.sessions.standing(&before.0, before.1) {
            NumberStanding::Done(done) if done.rolled_back => Some(Verdict::Refused(Refusal::new(
                Reason::RolledBack,
                format!("number {}, which comes before the batch, was rolled back", before.1),
            ))),
            NumberStanding::Done(_) | NumberStanding::Expired => None,
            // The number was not seen yet, or was refused. After a refusal the stream ends, and
            // this batch with it.
            NumberStanding::New | NumberStanding::Unknown | NumberStanding::Ended => Some(Verdict::Waits),
        }
    }

    /// Judges what the batch says of the state. An append is applied at once, if nothing is wrong.
    fn judge_content(&mut self, request: &Request) -> Result<(), Refusal> {
        if let Some(expected) = request.expected_head
            && expected != self.ground.below
        {
            let message = format!("head is expected to be {expected}, but it is {}", self.ground.below);
            return Err(Refusal::new(Reason::PreconditionFailed, message));
        }
        request.checks.iter().try_for_each(|check| {
            let state = self.state(&check.key);
            if holds(check, state) { Ok(()) } else { Err(failed(check, state)) }
        })?;
        if let Some(append) = &request.append {
            let erased = self.judge_erasures(request, append)?;
            self.draft.appended.push(self.round.append(append)?);
            self.erased = erased;
        }
        Ok(())
    }

    /// The number of journals that the version occults with this request. Refuses an order for
    /// which a shard of its ledger has no room: the whole version would fail there.
    fn judge_erasures(&self, request: &Request, append: &Checked) -> Result<u64, Refusal> {
        let Content::Order(ordered) = &append.content else { return Ok(self.erased) };
        let erased = self.erased + ordered.order.targets().len() as u64;
        let left = request.involved.iter().filter_map(|shard| self.ground.erasures_left.get(shard)).min();
        if let Some(left) = left.filter(|left| **left < erased) {
            // Another reason comes first: that of a repeated order tells that it was applied.
            self.round.judge(append)?;
            let message = format!("a shard of the ledger has room for {left} more occulted journals");
            return Err(Refusal::new(Reason::QuotaExceeded, message));
        }
        Ok(erased)
    }

    fn state(&self, key: &[u8]) -> KeyState {
        self.draft
            .overlay
            .get(key)
            .or_else(|| self.ground.overlay.get(key))
            .or_else(|| self.ground.reads.states.get(key).copied())
            .expect("every key of a precondition was read, or its shard is down")
    }
}

fn weight(request: &Request) -> u64 {
    request.bytes.max(1)
}

fn holds(check: &Check, state: KeyState) -> bool {
    match (&check.condition, state) {
        (Condition::Absent, KeyState::Absent) => true,
        (Condition::LastChanged(expected), KeyState::Live { last_changed, .. }) => *expected == last_changed,
        (Condition::ValueHash(expected), KeyState::Live { value_hash, .. }) => *expected == value_hash,
        _ => false,
    }
}

fn failed(check: &Check, state: KeyState) -> Refusal {
    let wanted = match &check.condition {
        Condition::Absent => "to be absent".to_owned(),
        Condition::LastChanged(stamp) => format!("to have last changed at {stamp}"),
        Condition::ValueHash(hash) => format!("to have a value with SHA-256 {hash}"),
    };
    let found = match state {
        KeyState::Absent => "it is absent".to_owned(),
        KeyState::Live { last_changed, value_hash } => {
            format!("it last changed at {last_changed} and its value has SHA-256 {value_hash}")
        }
    };
    let key = String::from_utf8_lossy(&check.key).escape_debug().to_string();
    Refusal::new(Reason::PreconditionFailed, format!("key \"{key}\" is expected {wanted}, but {found}"))
}

/// Folds the writes of a version's batches on one shard. The last write of a key wins. Returns them
/// in key order.
#[must_use]
pub(super) fn fold<'a>(lists: impl Iterator<Item = &'a Vec<Write>>) -> Vec<Write> {
    let mut folded: BTreeMap<Bytes, Write> = BTreeMap::new();
    for write in lists.flatten() {
        folded.insert(write.key.clone(), write.clone());
    }
    folded.into_values().collect()
}
