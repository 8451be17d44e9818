//! A coordinator for tests, which makes valid commands, and a naive model of the machine's answers.
//! The model keeps everything by version in plain collections, and recomputes answers from them.

pub mod check;

use std::{collections::BTreeMap, ops::Range};

use coppice_env::{Rng, SimRng};
use coppice_root::{
    AppendHeader, Command, OpenSession, Options, Outcome, Pin, Position, Refusal, Root, SessionCommit, SetPin,
    StateLeaf, TakeOver, Unpin,
};
use coppice_types::{ClusterId, Digest, Params, PinId, Sequence, SessionId, Stamp, Term, Version};
use coppice_verify::{
    anchor::{Anchor, Stamps, Token},
    epochs::Epochs,
    hash::{log_entry_hash, sha256},
    header::{Body, Genesis, Header, Prune, Rollback},
    journal::{BatchEntry, Entry, MergeEntry, journal_root},
    keys::KeyChange,
    merkle,
    note::SignerKey,
    shard_map::{ShardMap, state_root},
};

/// Remembered numbers of a session: so few that tests leave the window.
pub const WINDOW: u32 = 6;

/// Runs a test once for each seed, and names the seed that fails.
pub fn for_each_seed(test: &'static str, default_count: u64, run: impl Fn(u64)) {
    for seed in seeds(default_count) {
        let _announce = Announce { test, seed };
        run(seed);
    }
}

fn seeds(default_count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("COPPICE_SEEDS") else { return 0..default_count };
    let number = |text: &str| text.trim().parse().expect("COPPICE_SEEDS is a count or a range like 5..8");
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    }
}

struct Announce {
    test: &'static str,
    seed: u64,
}

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { test, seed } = *self;
            eprintln!("repeat: COPPICE_SEEDS={seed}..{} cargo test -p coppice-root --test root {test}", seed + 1);
        }
    }
}

/// The name and header of a standing version.
#[derive(Clone, Debug)]
pub struct Standing {
    pub stamp: Stamp,
    pub sequence: u64,
}

/// The outcome of a session's number.
#[derive(Clone, Debug)]
pub struct Numbered {
    pub hash: Digest,
    pub sequence: u64,
    pub journal_index: u32,
    pub rolled_back: bool,
}

/// One admin operation.
#[derive(Clone, Debug)]
pub struct Admin {
    pub sequence: u64,
    pub rollback_to: Option<Stamp>,
    pub prune_before: Option<u64>,
    pub boundary: Vec<StateLeaf>,
    pub newest: Vec<StateLeaf>,
}

/// Coordinator and model in one.
#[derive(Debug)]
pub struct Model {
    pub rng: SimRng,
    pub index: u64,
    pub term: u64,
    pub headers: Vec<Vec<u8>>,
    pub decoded: Vec<Header>,
    pub leaves: Vec<Vec<StateLeaf>>,
    pub journals: Vec<Vec<Vec<u8>>>,
    pub standing: Vec<Standing>,
    pub dead: Vec<Stamp>,
    pub epochs: Epochs,
    pub boundary: u64,
    pub sessions: BTreeMap<SessionId, BTreeMap<u64, Numbered>>,
    pub admins: Vec<Admin>,
    /// Pins that were set and not taken back, including those whose time is over: (version,
    /// expiry).
    pub pins: BTreeMap<PinId, (u64, u64)>,
    /// The raft log: every command so far, with its raft index and outcome.
    pub raft: Vec<(u64, Vec<u8>, Outcome)>,
}

pub fn options() -> Options {
    Options { save_after_bytes: 4096 }
}

pub fn params() -> Params {
    // The capacity of the golden directory, whatever new ledgers have.
    Params { session_window: WINDOW, capacity: 64 << 10, ..Params::default() }
}

pub fn genesis() -> Header {
    founded_on([3; 32])
}

/// A genesis header with a key whose private part is known here.
pub fn genesis_with_key() -> Header {
    founded_on(signer(0).verifier().public_key())
}

/// The genesis header of a cluster with ledgers of members.
pub fn genesis_with_ledgers() -> Header {
    let params = Params { ledgers: true, journals_kept: true, ..params() };
    let Body::Genesis(genesis) = genesis().body else { panic!("it founds") };
    Header::genesis(ClusterId([7; 16]), 1_000_000, Genesis { params, ..genesis })
}

fn founded_on(public_key: [u8; 32]) -> Header {
    let shard_map = ShardMap::from_splits(&[b"g".to_vec(), b"p".to_vec()]).expect("splits ascend");
    let genesis = Genesis { prefix: "ledger.example".into(), public_key, params: params(), shard_map };
    Header::genesis(ClusterId([7; 16]), 1_000_000, genesis)
}

/// The key of a number.
pub fn signer(number: u8) -> SignerKey {
    SignerKey::from_seed("ledger.example/x", &[number; 32]).expect("a name")
}

impl Model {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SimRng::new(seed),
            index: 0,
            term: 0,
            headers: Vec::new(),
            decoded: Vec::new(),
            leaves: Vec::new(),
            journals: Vec::new(),
            standing: Vec::new(),
            dead: Vec::new(),
            epochs: Epochs::new(),
            boundary: 0,
            sessions: BTreeMap::new(),
            admins: Vec::new(),
            pins: BTreeMap::new(),
            raft: Vec::new(),
        }
    }

    /// Founds a ledger in a model and a machine.
    pub fn founded(seed: u64, root: &mut Root) -> Self {
        let mut model = Self::new(seed);
        let command = model.take_over();
        model.accept(root, &command);
        model
    }

    pub fn newest(&self) -> &Header {
        self.decoded.last().expect("founded")
    }

    pub fn head(&self) -> Stamp {
        self.newest().stamp
    }

    pub fn size(&self) -> u64 {
        self.headers.len() as u64
    }

    pub fn hashes(&self) -> Vec<Digest> {
        self.headers.iter().map(|header| log_entry_hash(header)).collect()
    }

    // ---- commands

    pub fn take_over(&mut self) -> Command {
        let genesis = Some(genesis().encode());
        Command::TakeOver(TakeOver { candidate: format!("coordinator-{}", self.term), clock_ms: 5, genesis })
    }

    pub fn open_session(&mut self) -> Command {
        let session = SessionId([self.rng.below(5) as u8; 16]);
        Command::OpenSession(OpenSession { session, clock_ms: self.newest().timestamp_ms })
    }

    /// A pin with one of a few ids, on a readable version, for a time that ends soon. It is valid
    /// unless the id holds another version.
    pub fn set_pin(&mut self) -> Command {
        let head = self.head().version.0;
        let pin = PinId([self.rng.below(4) as u8; 16]);
        let version = match self.pins.get(&pin) {
            Some((version, _)) if *version >= self.boundary => *version,
            _ => self.boundary + self.rng.below(head - self.boundary + 1),
        };
        let (ttl_ms, clock_ms) = (1 + self.rng.below(20), self.newest().timestamp_ms.saturating_sub(1));
        Command::SetPin(SetPin { pin, version: Version(version), ttl_ms, clock_ms })
    }

    pub fn unpin(&mut self) -> Command {
        Command::Unpin(Unpin { pin: PinId([self.rng.below(4) as u8; 16]), clock_ms: 0 })
    }

    pub fn living_pins(&self) -> Vec<Pin> {
        let now_ms = self.newest().timestamp_ms;
        let pins = self.pins.iter().filter(|(_, (_, expires_ms))| *expires_ms > now_ms);
        pins.map(|(id, (version, expires_ms))| Pin { id: *id, version: Version(*version), expires_ms: *expires_ms })
            .collect()
    }

    /// Whether a pin that lives at the header's time forbids this prune.
    pub fn is_pinned(&self, command: &Command) -> bool {
        let Command::AppendHeader(append) = command else { return false };
        let header = Header::decode(&append.header).expect("a header");
        let Body::Prune(prune) = &header.body else { return false };
        self.pins.values().any(|(version, expires_ms)| *version < prune.boundary.0 && *expires_ms > header.timestamp_ms)
    }

    fn next_header(&mut self, body: Body) -> Header {
        let before = self.newest().clone();
        let admin = matches!(body, Body::Rollback(_) | Body::Prune(_));
        Header {
            sequence: before.sequence.next(),
            timestamp_ms: before.timestamp_ms + self.rng.below(3),
            journal_root: merkle::empty_root(),
            journal_leaves: 0,
            admin_sequence: before.admin_sequence + u64::from(admin),
            key_changes: before.key_changes_until(&body),
            previous: log_entry_hash(self.headers.last().expect("founded")),
            body,
            ..before
        }
    }

    fn append(&self, header: &Header) -> AppendHeader {
        AppendHeader {
            term: Term(self.term),
            header: header.encode(),
            changed_leaves: Vec::new(),
            journal: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// A commit of random batches, some of them of sessions.
    pub fn commit(&mut self) -> AppendHeader {
        let mut header = self.next_header(Body::Commit);
        header.stamp.version = header.stamp.version.next();
        let leaves = self.leaves.last().expect("founded").clone();
        let (mut journal, mut sessions) = (Vec::new(), Vec::<SessionCommit>::new());
        for at in 0..self.rng.below(4) {
            let commit = self.session_number(at as u32, &sessions);
            let shards: Vec<_> = leaves.iter().map(|leaf| leaf.shard).filter(|_| self.rng.chance(500)).collect();
            journal.push(Entry::Batch(BatchEntry {
                session: commit.as_ref().map(|commit| (commit.session, commit.number)),
                metadata: self.digest(),
                shards: shards.iter().map(|shard| (*shard, self.digest())).collect(),
            }));
            sessions.extend(commit);
        }
        if self.rng.chance(200) {
            let shard = leaves[self.rng.below(leaves.len() as u64) as usize].shard;
            let inputs = vec![self.digest(), self.digest()];
            journal.push(Entry::Merge(MergeEntry { shard, inputs, output: self.digest() }));
        }
        self.commit_of(header, journal, sessions)
    }

    /// A commit with this journal.
    pub fn commit_journal(&mut self, journal: Vec<Entry>) -> AppendHeader {
        let mut header = self.next_header(Body::Commit);
        header.stamp.version = header.stamp.version.next();
        self.commit_of(header, journal, Vec::new())
    }

    fn commit_of(&mut self, mut header: Header, journal: Vec<Entry>, sessions: Vec<SessionCommit>) -> AppendHeader {
        let mut leaves = self.leaves.last().expect("founded").clone();
        let touches = |entry: &Entry, shard| match entry {
            Entry::Merge(merge) => merge.shard == shard,
            _ => entry.writes().into_iter().flatten().any(|(touched, _)| *touched == shard),
        };
        let touched = |leaf: &StateLeaf| journal.iter().any(|entry| touches(entry, leaf.shard));
        for leaf in leaves.iter_mut().filter(|leaf| touched(leaf)) {
            leaf.version = header.stamp.version;
            leaf.digest = self.digest();
        }
        header.state_root = state_root(&leaves);
        (header.journal_root, header.journal_leaves) = (journal_root(&journal), journal.len() as u32);
        leaves.retain(touched);
        AppendHeader {
            changed_leaves: leaves,
            journal: journal.iter().map(Entry::encode).collect(),
            sessions,
            ..self.append(&header)
        }
    }

    fn session_number(&mut self, journal_index: u32, others: &[SessionCommit]) -> Option<SessionCommit> {
        let open: Vec<_> = self.sessions.keys().copied().collect();
        if open.is_empty() || self.rng.chance(400) {
            return None;
        }
        let session = open[self.rng.below(open.len() as u64) as usize];
        let known = &self.sessions[&session];
        let highest = known.keys().last().copied().unwrap_or(0);
        // Numbers may be skipped and used later, while they are in the window.
        let number = (highest + 1 + self.rng.below(3)).saturating_sub(self.rng.below(3)).max(1);
        let taken = known.contains_key(&number)
            || others.iter().any(|other| other.session == session && other.number == number);
        let expired = highest.saturating_sub(number) >= u64::from(WINDOW);
        if taken || expired {
            return None;
        }
        Some(SessionCommit { session, number, batch_hash: self.digest(), journal_index })
    }

    pub fn rollback(&mut self, to: u64) -> AppendHeader {
        let target = self.standing[to as usize].clone();
        let head_before = self.head();
        let text = String::from("test");
        let body =
            Body::Rollback(Rollback { target: target.stamp, head_before, principal: text.clone(), reason: text });
        let mut header = self.next_header(body);
        header.stamp = Stamp { epoch: header.stamp.epoch.next(), version: Version(to) };
        let mut epochs = self.epochs.clone();
        epochs.roll_back(header.stamp.epoch, Version(to));
        (header.epochs_root, header.epoch_pairs) = (epochs.root(), epochs.pairs().len() as u32);
        header.state_root = self.decoded[target.sequence as usize].state_root;
        self.append(&header)
    }

    /// A key change with valid signatures.
    pub fn key_change(&mut self, number: u32, old: u8, new: u8) -> AppendHeader {
        let change = KeyChange::sign(number, &self.newest().cluster, &signer(old), &signer(new));
        let header = self.next_header(Body::Key(change));
        self.append(&header)
    }

    /// An anchor over the first `size` entries.
    pub fn anchor(&mut self, size: u64) -> AppendHeader {
        let root = merkle::mth(&self.hashes()[..size as usize]);
        let tokens = vec![Token { kind: 1, chain: 0, bytes: b"token".to_vec() }];
        self.plain(Body::Anchor(Anchor::Stamps(Stamps { size, root, tokens })))
    }

    /// A header that changes no state.
    pub fn plain(&mut self, body: Body) -> AppendHeader {
        let header = self.next_header(body);
        self.append(&header)
    }

    pub fn prune(&mut self, before: u64) -> AppendHeader {
        let text = String::from("test");
        let body = Body::Prune(Prune { boundary: Version(before), principal: text.clone(), reason: text });
        let header = self.next_header(body);
        self.append(&header)
    }

    /// A random valid command.
    pub fn any(&mut self) -> Command {
        let head = self.head().version.0;
        match self.rng.below(100) {
            0..2 => self.take_over(),
            2..8 => self.open_session(),
            8..12 => {
                let to = self.boundary.max(head.saturating_sub(self.rng.below(12)));
                Command::AppendHeader(self.rollback(to))
            }
            12..15 => {
                let before = self.boundary + self.rng.below(head - self.boundary + 1);
                Command::AppendHeader(self.prune(before))
            }
            _ => Command::AppendHeader(self.commit()),
        }
    }

    pub fn digest(&mut self) -> Digest {
        let mut bytes = [0; 32];
        self.rng.fill(&mut bytes);
        Digest(bytes)
    }

    // ---- applying

    /// Applies a valid command to the machine and the model.
    pub fn accept(&mut self, root: &mut Root, command: &Command) {
        self.index += 1 + self.rng.below(2);
        let bytes = command.encode().expect("within limits");
        let outcome = root.apply(self.index, &bytes).expect("applies");
        let pins = self.pins.clone();
        self.learn(command);
        let expected = self.expected(command, &pins);
        assert_eq!(outcome, expected, "of {command:?}");
        self.raft.push((self.index, bytes, outcome));
    }

    /// Applies a command that must be refused, and checks that nothing changed.
    pub fn refuse(&mut self, root: &mut Root, command: &Command) -> Refusal {
        self.index += 1;
        let before = fingerprint(root);
        let bytes = command.encode().expect("within limits");
        let outcome = root.apply(self.index, &bytes).expect("applies");
        let Outcome::Refused(refusal) = outcome.clone() else { panic!("accepted {command:?}") };
        assert_eq!(fingerprint(root), before, "a refused command changed something: {command:?}");
        self.raft.push((self.index, bytes, outcome));
        refusal
    }

    fn expected(&self, command: &Command, pins_before: &BTreeMap<PinId, (u64, u64)>) -> Outcome {
        match command {
            Command::SetPin(set) => Outcome::Pinned(Pin {
                id: set.pin,
                version: set.version,
                expires_ms: set.clock_ms.max(self.newest().timestamp_ms) + set.ttl_ms,
            }),
            Command::Unpin(unpin) => {
                let now_ms = self.newest().timestamp_ms;
                Outcome::Unpinned { found: pins_before.get(&unpin.pin).is_some_and(|(_, end)| *end > now_ms) }
            }
            Command::TakeOver(_) => Outcome::TookOver { term: Term(self.term) },
            Command::AppendHeader(_) => Outcome::Appended {
                sequence: Sequence(self.size() - 1),
                log_size: self.size(),
                log_root: merkle::mth(&self.hashes()),
                path: merkle::inclusion_path(&self.hashes(), self.size() - 1),
            },
            Command::OpenSession(open) => {
                let last = self.sessions[&open.session].last_key_value();
                Outcome::SessionOpened {
                    highest_number: last.map_or(0, |(number, _)| *number),
                    batch_hash: last.map(|(_, numbered)| numbered.hash),
                    window: WINDOW,
                }
            }
        }
    }

    fn learn(&mut self, command: &Command) {
        match command {
            Command::TakeOver(take) => {
                self.term += 1;
                if self.headers.is_empty() {
                    let bytes = take.genesis.as_ref().expect("it founds the ledger");
                    let header = Header::decode(bytes).expect("a genesis header");
                    let Body::Genesis(genesis) = &header.body else { panic!("genesis") };
                    self.leaves.push(genesis.shard_map.genesis_leaves());
                    self.standing.push(Standing { stamp: Stamp::new(0, 0), sequence: 0 });
                    self.journals.push(Vec::new());
                    self.headers.push(header.encode());
                    self.decoded.push(header);
                }
            }
            Command::OpenSession(open) => {
                self.sessions.entry(open.session).or_default();
            }
            Command::SetPin(set) => {
                let expires_ms = set.clock_ms.max(self.newest().timestamp_ms) + set.ttl_ms;
                self.pins.insert(set.pin, (set.version.0, expires_ms));
            }
            Command::Unpin(unpin) => {
                self.pins.remove(&unpin.pin);
            }
            Command::AppendHeader(append) => self.learn_header(append),
        }
    }

    fn learn_header(&mut self, append: &AppendHeader) {
        let header = Header::decode(&append.header).expect("a header");
        let sequence = self.size();
        let before = self.leaves.last().expect("founded").clone();
        let leaves_at = |version: u64| self.leaves[self.standing[version as usize].sequence as usize].clone();
        let mut after = before.clone();
        match &header.body {
            Body::Commit => {
                for leaf in &mut after {
                    let changed = append.changed_leaves.iter().find(|changed| changed.shard == leaf.shard);
                    *leaf = changed.unwrap_or(leaf).clone();
                }
                self.standing.push(Standing { stamp: header.stamp, sequence });
                for commit in &append.sessions {
                    let (hash, journal_index) = (commit.batch_hash, commit.journal_index);
                    let numbered = Numbered { hash, sequence, journal_index, rolled_back: false };
                    self.sessions.entry(commit.session).or_default().insert(commit.number, numbered);
                }
            }
            Body::Rollback(rollback) => {
                let to = rollback.target.version.0;
                after = leaves_at(to);
                let boundary = after.clone();
                let rollback_to = Some(self.standing[to as usize].stamp);
                self.admins.push(Admin { sequence, rollback_to, prune_before: None, boundary, newest: before });
                let cut = self.standing.split_off(to as usize + 1);
                for numbered in self.sessions.values_mut().flat_map(|numbers| numbers.values_mut()) {
                    numbered.rolled_back |= cut.iter().any(|standing| standing.sequence == numbered.sequence);
                }
                self.dead.extend(cut.iter().map(|standing| standing.stamp));
                self.epochs.roll_back(header.stamp.epoch, rollback.target.version);
                self.pins.retain(|_, (version, _)| *version <= to);
            }
            Body::Prune(prune) => {
                let boundary = leaves_at(prune.boundary.0);
                let prune_before = Some(prune.boundary.0);
                self.admins.push(Admin { sequence, rollback_to: None, prune_before, boundary, newest: before });
                self.boundary = prune.boundary.0;
            }
            Body::Key(_) | Body::Anchor(_) => {}
            _ => panic!("not made by this model"),
        }
        self.leaves.push(after);
        self.journals.push(append.journal.clone());
        self.headers.push(append.header.clone());
        self.decoded.push(header);
    }

    /// Applies the commands that raft would replay to a recovered machine.
    pub fn replay(&self, root: &mut Root) {
        let from = root.applied_index();
        for (index, bytes, outcome) in self.raft.iter().filter(|(index, ..)| *index > from) {
            assert_eq!(&root.apply(*index, bytes).expect("applies"), outcome, "replay of raft entry {index}");
        }
    }

    pub fn position(&self) -> Position {
        Position { index: self.index, term: 1 }
    }
}

/// A hash of all answers of the machine, except for the raft index.
pub fn fingerprint(root: &Root) -> String {
    let sessions: Vec<_> = root.sessions().collect();
    let pins: Vec<_> = root.pins(0).collect();
    let text = format!("{:?} {sessions:?} {pins:?} {}", root.view(), root.unflushed_bytes());
    sha256(text.as_bytes()).to_string()
}
