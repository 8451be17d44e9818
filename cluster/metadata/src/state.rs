//! The content of the embedded store, as a plain state machine: no clock, no files, no waiting.
//!
//! Invariants: nothing is bound to a lease that has ended. Candidates stand in the order of their
//! tokens. The revision grows only with visible changes and new candidates.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use coppice_types::codec::{Error as Malformed, Reader, Writer};

use crate::{Change, Changes, Error, Kind, Leader, LeaseId, Member, Revision, Snapshot};

/// Longest name or address, in bytes.
pub const TEXT_BYTES_MAX: usize = 256;
/// Most leases at once.
pub const LEASES_MAX: usize = 4096;
/// Most registered processes.
pub const MEMBERS_MAX: usize = 4096;
/// Most candidates in line.
pub const CANDIDATES_MAX: usize = 256;
/// Number of the last revisions that are kept for watches.
pub const HISTORY_MAX: usize = 1024;

/// The first byte of the encoding.
const FORMAT: u8 = 1;

/// A candidate in line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    lease: LeaseId,
    leader: Leader,
}

/// The content of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    revision: Revision,
    last_lease: u64,
    leases: BTreeMap<LeaseId, Duration>,
    members: BTreeMap<(Kind, String), (LeaseId, Member)>,
    line: Vec<Candidate>,
    /// The changes of the last revisions; not saved.
    history: VecDeque<Changes>,
}

impl State {
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn leases(&self) -> &BTreeMap<LeaseId, Duration> {
        &self.leases
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let members = self.members.values().map(|(_, member)| member.clone()).collect();
        Snapshot { revision: self.revision, members, leader: self.leader() }
    }

    fn leader(&self) -> Option<Leader> {
        self.line.first().map(|first| first.leader.clone())
    }

    /// The changes of the first visible revision after `asked`; `None` if there is none yet.
    pub(crate) fn after(&self, asked: Revision) -> Result<Option<Changes>, Error> {
        if asked >= self.revision {
            return Ok(None);
        }
        let oldest = self.history.front().map_or(self.revision, |changes| changes.revision);
        // Revisions have no gaps, so a watch from the one before the oldest kept misses nothing.
        if asked.0 + 1 < oldest.0 || self.history.is_empty() {
            return Err(Error::Compacted { asked, oldest });
        }
        let at = self.history.partition_point(|changes| changes.revision <= asked);
        // A candidate that joined the line behind others took a revision, but is not visible.
        Ok(self.history.iter().skip(at).find(|changes| !changes.changes.is_empty()).cloned())
    }

    /// Whether the candidate of this lease was picked; `None` if there is no such candidate.
    pub(crate) fn picked(&self, lease: LeaseId, token: Revision) -> Option<Option<Leader>> {
        let at = self.line.iter().position(|other| other.lease == lease && other.leader.token == token)?;
        Some((at == 0).then(|| self.line[0].leader.clone()))
    }

    pub(crate) fn grant(&mut self, ttl: Duration) -> Result<LeaseId, Error> {
        if self.leases.len() >= LEASES_MAX {
            return Err(Error::Exhausted("leases"));
        }
        self.last_lease += 1;
        let lease = LeaseId(self.last_lease);
        self.leases.insert(lease, ttl);
        Ok(lease)
    }

    pub(crate) fn register(&mut self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        self.check(lease)?;
        check_text("name", &member.name)?;
        check_text("address", &member.address)?;
        let key = (member.kind, member.name.clone());
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&key) {
            return Err(Error::Exhausted("members"));
        }
        self.members.insert(key, (lease, member.clone()));
        self.record(vec![Change::Joined(member)]);
        Ok(self.revision)
    }

    /// Puts a candidate into the line, and returns its token.
    pub(crate) fn stand(&mut self, lease: LeaseId, name: &str) -> Result<Revision, Error> {
        self.check(lease)?;
        check_text("name", name)?;
        if let Some(same) = self.line.iter().find(|other| other.lease == lease && other.leader.name == name) {
            return Ok(same.leader.token);
        }
        let before = self.leader();
        self.line.retain(|other| other.lease != lease && other.leader.name != name);
        if self.line.len() >= CANDIDATES_MAX {
            return Err(Error::Exhausted("candidates"));
        }
        // A candidate behind others is not visible, but its token is a revision of its own.
        let token = Revision(self.revision.0 + 1);
        self.line.push(Candidate { lease, leader: Leader { name: name.to_owned(), token } });
        let changes = self.leader_changes(before);
        self.record(changes);
        Ok(token)
    }

    pub(crate) fn resign(&mut self, lease: LeaseId) {
        let before = self.leader();
        self.line.retain(|other| other.lease != lease);
        let changes = self.leader_changes(before);
        if !changes.is_empty() {
            self.record(changes);
        }
    }

    /// Ends leases and all that is bound to them, in one revision.
    pub(crate) fn end(&mut self, ended: &[LeaseId]) {
        self.leases.retain(|lease, _| !ended.contains(lease));
        let before = self.leader();
        self.line.retain(|candidate| self.leases.contains_key(&candidate.lease));
        let mut changes = self.leader_changes(before);
        self.members.retain(|(kind, name), (lease, _)| {
            let stays = self.leases.contains_key(lease);
            if !stays {
                changes.push(Change::Left { kind: *kind, name: name.clone() });
            }
            stays
        });
        if !changes.is_empty() {
            self.record(changes);
        }
    }

    /// Drops the history.
    pub(crate) fn compact(&mut self) {
        self.history.clear();
    }

    pub(crate) fn check(&self, lease: LeaseId) -> Result<(), Error> {
        if self.leases.contains_key(&lease) { Ok(()) } else { Err(Error::LeaseLost(lease)) }
    }

    fn leader_changes(&self, before: Option<Leader>) -> Vec<Change> {
        let leader = self.leader();
        if leader == before { Vec::new() } else { vec![Change::Leader(leader)] }
    }

    fn record(&mut self, changes: Vec<Change>) {
        self.revision.0 += 1;
        self.history.push_back(Changes { revision: self.revision, changes });
        while self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(FORMAT);
        out.u64(self.revision.0);
        out.u64(self.last_lease);
        out.u32(count(self.leases.len()));
        for (lease, ttl) in &self.leases {
            out.u64(lease.0);
            out.u64(u64::try_from(ttl.as_millis()).expect("leases are at most an hour"));
        }
        out.u32(count(self.members.len()));
        for (lease, member) in self.members.values() {
            out.u64(lease.0);
            out.u8(match member.kind {
                Kind::Node => 0,
                Kind::Coordinator => 1,
            });
            out.str16(member.name.as_bytes());
            out.str16(member.address.as_bytes());
        }
        out.u32(count(self.line.len()));
        for candidate in &self.line {
            out.u64(candidate.lease.0);
            out.str16(candidate.leader.name.as_bytes());
            out.u64(candidate.leader.token.0);
        }
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        if input.u8()? != FORMAT {
            return Err(Malformed::Malformed("format"));
        }
        let mut state = Self { revision: Revision(input.u64()?), last_lease: input.u64()?, ..Self::default() };
        for _ in 0..input.u32()? {
            state.leases.insert(LeaseId(input.u64()?), Duration::from_millis(input.u64()?));
        }
        for _ in 0..input.u32()? {
            let lease = LeaseId(input.u64()?);
            let kind = match input.u8()? {
                0 => Kind::Node,
                1 => Kind::Coordinator,
                _ => return Err(Malformed::Malformed("kind of a member")),
            };
            let member = Member { kind, name: text(&mut input)?, address: text(&mut input)? };
            state.members.insert((kind, member.name.clone()), (lease, member));
        }
        for _ in 0..input.u32()? {
            let lease = LeaseId(input.u64()?);
            let leader = Leader { name: text(&mut input)?, token: Revision(input.u64()?) };
            state.line.push(Candidate { lease, leader });
        }
        input.finish()?;
        state.check_bonds()?;
        Ok(state)
    }

    fn check_bonds(&self) -> Result<(), Malformed> {
        let bound = self.members.values().map(|(lease, _)| lease).chain(self.line.iter().map(|other| &other.lease));
        let tokens_ascend = self.line.is_sorted_by(|a, b| a.leader.token < b.leader.token);
        let newest = self.line.last().is_none_or(|last| last.leader.token <= self.revision);
        let numbered = self.leases.keys().all(|lease| lease.0 <= self.last_lease);
        match bound.into_iter().all(|lease| self.leases.contains_key(lease)) && tokens_ascend && newest && numbered {
            true => Ok(()),
            false => Err(Malformed::Malformed("parts that belong together")),
        }
    }
}

fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) { Ok(()) } else { Err(Error::Invalid(field)) }
}

fn text(input: &mut Reader<'_>) -> Result<String, Malformed> {
    String::from_utf8(input.str16()?.to_vec()).map_err(|_| Malformed::Malformed("text"))
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("every part is bounded")
}
