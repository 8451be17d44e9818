//! The execution of each command. First everything is checked, then everything is changed, so a
//! refused command changes nothing.
//!
//! The rules are those of `docs/verification.md` section 9 and PROTOCOL sections 3, 5 and 8. They
//! depend on the state and the command alone, so every replica accepts the same commands.

use std::collections::BTreeSet;

use coppice_env::bug::{Bug, planted};
use coppice_types::{Digest, Sequence, ShardId, Stamp, Term, Version};
use coppice_verify::{
    anchor::Anchor,
    epochs::Epochs,
    hash,
    header::{Body, Header, Prune, Rollback},
    journal::Entry,
    keys::{KEY_CHANGES_MAX, KeyChange},
    merkle,
};

use crate::{
    Error, Outcome, Refusal, Root,
    chunk::States,
    command::{AppendHeader, Command, OpenSession, SetPin, TakeOver, Unpin},
    ledgers::Growth,
    pins::{PIN_TTL_MS_MAX, Pin, VERSION_PINS_MAX},
    sessions::{SESSIONS_MAX, Unfit},
    state::{Ledger, state_of, state_root},
    tiles::split_index,
    timeline::Unreadable,
    types::{AnchorPlace, KeyTurn, SessionCommit},
};

/// The reason why a command is not executed.
pub(crate) enum Stop {
    /// Every replica refuses it.
    Refuse(Refusal),
    /// This replica failed, and stops.
    Fail(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

/// A header that passed every check, with the states of the shards that it changes.
struct Checked {
    header: Header,
    changed: States,
    growth: Growth,
}

impl Root {
    /// Executes a command of the raft entry `index`. `bytes` is the command's encoding.
    pub(crate) fn execute(&mut self, index: u64, command: &Command, bytes: &[u8]) -> Result<Outcome, Error> {
        let outcome = match command {
            Command::TakeOver(command) => self.take_over(index, command, bytes),
            Command::AppendHeader(command) => self.append_header(index, command, bytes),
            Command::OpenSession(command) => self.open_session(index, *command, bytes),
            Command::SetPin(command) => self.set_pin(index, *command, bytes),
            Command::Unpin(command) => self.unpin(index, *command, bytes),
        };
        match outcome {
            Ok(outcome) => Ok(outcome),
            Err(Stop::Refuse(refusal)) => Ok(Outcome::Refused(refusal)),
            Err(Stop::Fail(error)) => Err(error),
        }
    }

    fn take_over(&mut self, index: u64, command: &TakeOver, bytes: &[u8]) -> Result<Outcome, Stop> {
        let founding = match (&self.state.ledger, &command.genesis) {
            (Some(_), _) => None,
            (None, None) => return Err(Refusal::NoGenesis.into()),
            (None, Some(genesis)) => Some((check_genesis(genesis)?, genesis)),
        };
        let place = self.journal.append(index, bytes);
        if let Some((header, genesis)) = founding {
            self.state.ledger = Some(Ledger::found(header, genesis, place, &mut self.store));
        }
        let before = self.state.term;
        self.state.term = before.next();
        assert!(self.state.term > before, "every leader has a term of its own");
        self.state.leader.clone_from(&command.candidate);
        self.state.leader_clock_ms = command.clock_ms;
        Ok(Outcome::TookOver { term: self.state.term })
    }

    fn open_session(&mut self, index: u64, command: OpenSession, bytes: &[u8]) -> Result<Outcome, Stop> {
        let ledger = self.state.ledger.as_mut().ok_or(Refusal::NoGenesis)?;
        let now_ms = command.clock_ms.max(ledger.newest.timestamp_ms);
        let window = ledger.params().session_window;
        let session =
            ledger.sessions.open(command.session, now_ms, window).ok_or(Refusal::SessionsFull(SESSIONS_MAX))?;
        let highest_number = session.highest_number();
        let batch_hash = session.batch(highest_number).map(|batch| batch.batch_hash);
        self.journal.append(index, bytes);
        Ok(Outcome::SessionOpened { highest_number, batch_hash, window })
    }

    fn set_pin(&mut self, index: u64, command: SetPin, bytes: &[u8]) -> Result<Outcome, Stop> {
        let ledger = self.state.ledger.as_mut().ok_or(Refusal::NoGenesis)?;
        let now_ms = command.clock_ms.max(ledger.newest.timestamp_ms);
        if !(1..=PIN_TTL_MS_MAX).contains(&command.ttl_ms) {
            return Err(Refusal::PinTime(PIN_TTL_MS_MAX).into());
        }
        let version = command.version;
        let found = ledger.timeline.find(version, None).map_err(|why| unreadable(ledger, version, why))?;
        let mut others = 0;
        for pin in ledger.pins.living(now_ms) {
            if pin.id != command.pin {
                others += 1;
            } else if pin.version != version {
                return Err(Refusal::OtherPin { pin: pin.id, version: pin.version }.into());
            }
        }
        if others >= VERSION_PINS_MAX {
            return Err(Refusal::PinsFull(VERSION_PINS_MAX).into());
        }
        let pin =
            Pin { id: command.pin, version: found.stamp.version, expires_ms: now_ms.saturating_add(command.ttl_ms) };
        self.journal.append(index, bytes);
        ledger.pins.end_expired(now_ms);
        ledger.pins.set(pin);
        Ok(Outcome::Pinned(pin))
    }

    fn unpin(&mut self, index: u64, command: Unpin, bytes: &[u8]) -> Result<Outcome, Stop> {
        let ledger = self.state.ledger.as_mut().ok_or(Refusal::NoGenesis)?;
        let now_ms = command.clock_ms.max(ledger.newest.timestamp_ms);
        self.journal.append(index, bytes);
        ledger.pins.end_expired(now_ms);
        let found = ledger.pins.remove(command.pin);
        Ok(Outcome::Unpinned { found })
    }

    fn append_header(&mut self, index: u64, command: &AppendHeader, bytes: &[u8]) -> Result<Outcome, Stop> {
        let Checked { header, changed, growth } = self.check_append(command)?;
        let ledger = self.state.ledger.as_mut().ok_or(Refusal::NoGenesis)?;
        let place = self.journal.append(index, bytes);
        let sequence = header.sequence;
        match &header.body {
            Body::Commit => {
                if !planted(Bug::SessionNumberLost) || sequence.0 % 7 != 0 {
                    ledger.sessions.commit(&command.sessions, sequence, header.timestamp_ms);
                }
                ledger.timeline.commit(sequence);
                ledger.ledgers.grow(growth, header.stamp.version);
            }
            Body::Rollback(rollback) => {
                let target = ledger.timeline.roll_back(rollback.target.version, sequence);
                ledger.sessions.end_idle(header.timestamp_ms);
                ledger.sessions.roll_back(target);
                ledger.pins.roll_back(rollback.target.version);
            }
            Body::Prune(prune) => {
                ledger.sessions.end_idle(header.timestamp_ms);
                ledger.timeline.prune(prune.boundary, sequence);
                ledger.pins.end_expired(header.timestamp_ms);
            }
            Body::Key(change) => {
                ledger.keys.push(KeyTurn { sequence, public_key: change.new });
            }
            Body::Anchor(anchor) => {
                if let Anchor::Stamps(stamps) = anchor {
                    let timestamp_ms = header.timestamp_ms;
                    ledger.anchor = Some(AnchorPlace { sequence, stamped_size: stamps.size, timestamp_ms });
                }
            }
            Body::Genesis(_) | Body::Other { .. } => unreachable!("other kinds were refused"),
        }
        let path = ledger.log.path_of_next();
        ledger.append(header, &command.header, place, changed, &mut self.store, &mut self.state.sealed);
        if ledger.chunk_is_full() {
            let full = self.journal.roll();
            ledger.seal_chunk(&full, &mut self.store, &mut self.state.sealed);
        }
        assert_eq!(ledger.newest.stamp, ledger.timeline.head(), "the newest header names the head");
        assert_eq!(ledger.log.size(), sequence.0 + 1, "the header is the newest entry");
        assert_eq!(self.journal.end().chunk, split_index(ledger.log.size()).0, "journal and log change files together");
        Ok(Outcome::Appended { sequence, log_size: ledger.log.size(), log_root: ledger.log.root(), path })
    }

    fn check_append(&self, command: &AppendHeader) -> Result<Checked, Stop> {
        let ledger = self.state.ledger.as_ref().ok_or(Refusal::NoGenesis)?;
        if !planted(Bug::TermUnchecked) {
            check_term(command.term, self.state.term)?;
        }
        let header = Header::decode(&command.header).map_err(Refusal::Header)?;
        if header.cluster != ledger.cluster {
            return Err(Refusal::Cluster.into());
        }
        header.check_follows(&ledger.newest).map_err(|rule| Refusal::Follows(rule.0))?;
        if header.shard_map != ledger.newest.shard_map {
            return Err(Refusal::Content("shard map").into());
        }
        let mut epochs = ledger.timeline.epochs().clone();
        let mut growth = Growth::default();
        let changed = match &header.body {
            Body::Commit => check_commit(ledger, &header, command, &mut growth)?,
            Body::Rollback(rollback) => {
                let changed = self.check_rollback(ledger, rollback, command)?;
                epochs.roll_back(header.stamp.epoch, rollback.target.version);
                changed
            }
            Body::Prune(prune) => check_prune(ledger, &header, prune, command)?,
            Body::Key(change) => check_key(ledger, change, command)?,
            Body::Anchor(anchor) => self.check_anchor(ledger, anchor, command)?,
            Body::Genesis(_) | Body::Other { .. } => return Err(Refusal::Follows("kind").into()),
        };
        check_state(ledger, &header, &changed)?;
        check_epochs(&header, &epochs)?;
        check_journal_root(&header, &command.journal)?;
        Ok(Checked { header, changed, growth })
    }

    /// Checks that the anchor's stamps are over a larger log than those before, and that the log
    /// had the stamped root at that size.
    fn check_anchor(&self, ledger: &Ledger, anchor: &Anchor, command: &AppendHeader) -> Result<States, Stop> {
        check_no_change(command, "an anchor changes no state")?;
        let Anchor::Stamps(stamps) = anchor else { return Ok(States::new()) };
        if ledger.anchor.is_some_and(|before| stamps.size <= before.stamped_size) {
            return Err(Refusal::Anchor("the stamped log is no larger than the one before").into());
        }
        if ledger.log.root_at(stamps.size, &self.store)? != stamps.root {
            return Err(Refusal::Anchor("the log never had this root").into());
        }
        Ok(States::new())
    }

    /// Checks a rollback. Returns the states of the target that differ from those of head.
    fn check_rollback(&self, ledger: &Ledger, rollback: &Rollback, command: &AppendHeader) -> Result<States, Stop> {
        check_no_journal(command)?;
        let version = rollback.target.version;
        let floor = ledger.ledgers.floor();
        if version < floor && !planted(Bug::FloorLeftOut) {
            return Err(Refusal::LedgerFloor { target: version, floor }.into());
        }
        let found = ledger.timeline.find(version, Some(rollback.target.epoch)).map_err(|why| match why {
            Unreadable::RolledBack => Refusal::RolledBack(rollback.target),
            why => unreadable(ledger, version, why),
        })?;
        if found.stamp != rollback.target {
            return Err(Refusal::Content("name of the target").into());
        }
        let target = self.states_after(ledger, found.sequence)?;
        for leaf in &command.changed_leaves {
            if target.get(&leaf.shard) != Some(&state_of(leaf)) {
                return Err(Refusal::Leaf { shard: leaf.shard, what: "not that of the target" }.into());
            }
        }
        Ok(target.into_iter().filter(|(shard, state)| ledger.states.get(shard) != Some(state)).collect())
    }
}

fn unreadable(ledger: &Ledger, version: Version, why: Unreadable) -> Refusal {
    let head = ledger.timeline.head();
    match why {
        Unreadable::NotYet => Refusal::AboveHead { version, head },
        Unreadable::Pruned => Refusal::Pruned { version, boundary: ledger.timeline.boundary() },
        Unreadable::RolledBack => Refusal::RolledBack(Stamp { epoch: head.epoch, version }),
    }
}

fn check_term(given: Term, current: Term) -> Result<(), Refusal> {
    if given == current { Ok(()) } else { Err(Refusal::StaleTerm { given, current }) }
}

/// Checks the header that founds a ledger.
fn check_genesis(bytes: &[u8]) -> Result<Header, Refusal> {
    let header = Header::decode(bytes).map_err(Refusal::Header)?;
    let Body::Genesis(genesis) = &header.body else { return Err(Refusal::Genesis("another kind")) };
    if header.state_root != state_root(&genesis.shard_map.genesis_leaves()) {
        return Err(Refusal::Genesis("the state root is not that of empty shards"));
    }
    check_epochs(&header, &Epochs::new())?;
    Ok(header)
}

fn check_commit(
    ledger: &Ledger,
    header: &Header,
    command: &AppendHeader,
    growth: &mut Growth,
) -> Result<States, Refusal> {
    let changed = check_leaves(ledger, header, command)?;
    let touched = check_journal(ledger, command, growth)?;
    if !touched.iter().eq(changed.keys()) {
        return Err(Refusal::Content("shards that the journal touches"));
    }
    check_sessions(ledger, header, &command.sessions)?;
    Ok(changed)
}

fn check_prune(ledger: &Ledger, header: &Header, prune: &Prune, command: &AppendHeader) -> Result<States, Refusal> {
    check_no_change(command, "a prune changes no state")?;
    let (version, boundary, head) = (prune.boundary, ledger.timeline.boundary(), ledger.timeline.head());
    if version > head.version {
        return Err(Refusal::AboveHead { version, head });
    }
    if version < boundary {
        return Err(Refusal::Pruned { version, boundary });
    }
    match ledger.pins.oldest(header.timestamp_ms) {
        Some(pin) if pin.version < version => Err(Refusal::Pinned { version, pin }),
        _ => Ok(States::new()),
    }
}

/// Checks that the change is the next one, from the current key to one that the ledger never had.
/// Decoding has checked its signatures.
fn check_key(ledger: &Ledger, change: &KeyChange, command: &AppendHeader) -> Result<States, Refusal> {
    check_no_change(command, "a key change changes no state")?;
    let changes = ledger.keys.len();
    if changes >= KEY_CHANGES_MAX {
        return Err(Refusal::Key("it was changed as often as it can be"));
    }
    if usize::try_from(change.number) != Ok(changes + 1) {
        return Err(Refusal::Key("the number is not the next"));
    }
    if change.old != ledger.current_key() {
        return Err(Refusal::Key("the old key is not the current one"));
    }
    let used = ledger.genesis.public_key == change.new || ledger.keys.iter().any(|turn| turn.public_key == change.new);
    if used {
        return Err(Refusal::Key("the new key was the ledger's before"));
    }
    Ok(States::new())
}

/// Checks that the changed leaves name shards of the map with their ranges, each once, at the
/// header's version.
fn check_leaves(ledger: &Ledger, header: &Header, command: &AppendHeader) -> Result<States, Refusal> {
    let mut changed = States::new();
    for leaf in &command.changed_leaves {
        let refuse = |what| Refusal::Leaf { shard: leaf.shard, what };
        let shard = ledger.genesis.shard_map.shards().iter().find(|shard| shard.id == leaf.shard);
        let shard = shard.ok_or_else(|| refuse("no such shard"))?;
        if (&leaf.low, &leaf.high) != (&shard.low, &shard.high) {
            return Err(refuse("another range"));
        }
        if leaf.version != header.stamp.version {
            return Err(refuse("a different version than the header's"));
        }
        if changed.insert(leaf.shard, state_of(leaf)).is_some() {
            return Err(refuse("given twice"));
        }
    }
    Ok(changed)
}

/// Returns the shards that journal entries touch. Batches and appends must come before heads, and
/// these before events. The batches with a session must be those of the session commits. Appends
/// and heads must continue their ledgers.
fn check_journal(ledger: &Ledger, command: &AppendHeader, growth: &mut Growth) -> Result<BTreeSet<ShardId>, Refusal> {
    let mut touched = BTreeSet::new();
    let mut named = BTreeSet::new();
    let mut place = 0;
    for (at, bytes) in command.journal.iter().enumerate() {
        let refuse = |what| Refusal::Journal { entry: at, what };
        let entry = Entry::decode(bytes).map_err(|_| refuse("malformed"))?;
        if entry.place() < place {
            return Err(refuse("out of order"));
        }
        place = entry.place();
        touched.extend(entry.writes().into_iter().flatten().map(|(shard, _)| *shard));
        match &entry {
            Entry::Batch(batch) => named.extend(batch.session.map(|(session, number)| (at, session, number))),
            Entry::Merge(merge) => drop(touched.insert(merge.shard)),
            Entry::Append(_) | Entry::Head(_) if !ledger.params().ledgers => {
                return Err(refuse("of a kind that the ledger does not have"));
            }
            Entry::Append(append) => ledger.ledgers.check_append(growth, append).map_err(refuse)?,
            Entry::Head(head) => ledger.ledgers.check_head(growth, head).map_err(refuse)?,
        }
    }
    if !growth.is_whole() {
        return Err(Refusal::Content("heads of ledgers"));
    }
    for commit in &command.sessions {
        let at = usize::try_from(commit.journal_index).unwrap_or(usize::MAX);
        if !named.remove(&(at, commit.session, commit.number)) {
            return Err(Refusal::Journal { entry: at, what: "not the batch of its session commit" });
        }
    }
    match named.first() {
        Some((at, ..)) => Err(Refusal::Journal { entry: *at, what: "a session's batch without session commit" }),
        None => Ok(touched),
    }
}

/// Checks that the header leaves the shards' states as they are. If not, the refusal says `what`.
fn check_no_change(command: &AppendHeader, what: &'static str) -> Result<(), Refusal> {
    check_no_journal(command)?;
    let leaf = command.changed_leaves.first();
    leaf.map_or(Ok(()), |leaf| Err(Refusal::Leaf { shard: leaf.shard, what }))
}

fn check_no_journal(command: &AppendHeader) -> Result<(), Refusal> {
    if !command.journal.is_empty() {
        return Err(Refusal::Content("journal"));
    }
    match command.sessions.first() {
        Some(commit) => Err(Refusal::UnknownSession(commit.session)),
        None => Ok(()),
    }
}

fn check_sessions(ledger: &Ledger, header: &Header, commits: &[SessionCommit]) -> Result<(), Refusal> {
    ledger.sessions.check(commits, header.timestamp_ms).map_err(|(at, unfit)| {
        let SessionCommit { session, number, .. } = commits[at];
        match unfit {
            Unfit::Unknown => Refusal::UnknownSession(session),
            Unfit::Zero => Refusal::Content("session number 0"),
            Unfit::Expired => Refusal::Expired { session, number },
            Unfit::Repeated => Refusal::Repeated { session, number, sequence: committed_by(ledger, &commits[at]) },
        }
    })
}

fn committed_by(ledger: &Ledger, commit: &SessionCommit) -> Option<Sequence> {
    Some(ledger.sessions.get(commit.session)?.batch(commit.number)?.sequence)
}

fn check_state(ledger: &Ledger, header: &Header, changed: &States) -> Result<(), Refusal> {
    let mut states = ledger.states.clone();
    states.extend(changed);
    let leaves = ledger.leaves(&states);
    if usize::try_from(header.state_leaves) != Ok(leaves.len()) {
        return Err(Refusal::Content("number of state leaves"));
    }
    if header.state_root != state_root(&leaves) {
        return Err(Refusal::Content("state root"));
    }
    Ok(())
}

fn check_epochs(header: &Header, epochs: &Epochs) -> Result<(), Refusal> {
    if usize::try_from(header.epoch_pairs) != Ok(epochs.pairs().len()) || header.epochs_root != epochs.root() {
        return Err(Refusal::Content("epochs root"));
    }
    Ok(())
}

fn check_journal_root(header: &Header, journal: &[Vec<u8>]) -> Result<(), Refusal> {
    let leaves: Vec<Digest> = journal.iter().map(|entry| hash::journal_leaf_hash(entry)).collect();
    if usize::try_from(header.journal_leaves) != Ok(leaves.len()) || header.journal_root != merkle::mth(&leaves) {
        return Err(Refusal::Content("journal root"));
    }
    Ok(())
}
