//! The keys, all below `<prefix>/<cluster id>/`, and the store's content as read from them:
//!
//! - `members/node/<name>` and `members/coordinator/<name>`: an address, bound to the member's
//!   lease
//! - `candidates/<lease, 16 hex digits>/<name>`: a candidate, bound to its lease. The line is
//!   ordered by create revision, which is the fencing token.
//!
//! Other keys and values belong to somebody else, and are ignored.

use std::collections::BTreeMap;

use coppice_types::ClusterId;
use etcd_client::KeyValue;

use crate::{Change, Kind, Leader, LeaseId, Member, Revision, Snapshot};

/// A parsed key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parsed {
    Member(Kind, String),
    Candidate(LeaseId, String),
}

/// Makes and reads the keys of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    base: String,
}

impl Keys {
    pub fn new(prefix: &str, cluster: &ClusterId) -> Self {
        Self { base: format!("{}/{cluster}/", prefix.trim_end_matches('/')) }
    }

    /// The prefix of all keys.
    pub fn all(&self) -> &str {
        &self.base
    }

    pub fn members(&self) -> String {
        format!("{}members/", self.base)
    }

    pub fn candidates(&self) -> String {
        format!("{}candidates/", self.base)
    }

    pub fn member(&self, kind: Kind, name: &str) -> String {
        format!("{}members/{}/{name}", self.base, word(kind))
    }

    /// The prefix of the candidates of a lease.
    pub fn candidates_of(&self, lease: LeaseId) -> String {
        format!("{}candidates/{:016x}/", self.base, lease.0)
    }

    pub fn candidate(&self, lease: LeaseId, name: &str) -> String {
        format!("{}{name}", self.candidates_of(lease))
    }

    fn parse(&self, key: &[u8]) -> Option<Parsed> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.base)?;
        let (folder, rest) = key.split_once('/')?;
        let (first, name) = rest.split_once('/')?;
        match (folder, first) {
            _ if name.is_empty() => None,
            ("members", "node") => Some(Parsed::Member(Kind::Node, name.to_owned())),
            ("members", "coordinator") => Some(Parsed::Member(Kind::Coordinator, name.to_owned())),
            ("candidates", lease) => {
                let lease = u64::from_str_radix(lease, 16).ok()?;
                Some(Parsed::Candidate(LeaseId(lease), name.to_owned()))
            }
            _ => None,
        }
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Node => "node",
        Kind::Coordinator => "coordinator",
    }
}

/// A candidate in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub lease: LeaseId,
    pub name: String,
}

/// The content of the keys as of one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Mirror {
    members: BTreeMap<(Kind, String), String>,
    /// The candidates, by token.
    line: BTreeMap<Revision, Waiting>,
}

impl Mirror {
    pub fn of(keys: &Keys, kvs: &[KeyValue]) -> Self {
        let mut mirror = Self::default();
        for kv in kvs {
            mirror.put(keys, kv);
        }
        mirror
    }

    pub fn line(&self) -> &BTreeMap<Revision, Waiting> {
        &self.line
    }

    pub fn leader(&self) -> Option<Leader> {
        self.line.first_key_value().map(|(token, first)| Leader { name: first.name.clone(), token: *token })
    }

    pub fn snapshot(self, revision: Revision) -> Snapshot {
        let leader = self.leader();
        let members = self.members.into_iter().map(|((kind, name), address)| Member { kind, name, address });
        Snapshot { revision, members: members.collect(), leader }
    }

    /// Takes over a key that was put. Returns the change, unless it concerns the leader alone.
    pub fn put(&mut self, keys: &Keys, kv: &KeyValue) -> Option<Change> {
        match keys.parse(kv.key())? {
            Parsed::Member(kind, name) => {
                let address = std::str::from_utf8(kv.value()).ok()?.to_owned();
                self.members.insert((kind, name.clone()), address.clone());
                Some(Change::Joined(Member { kind, name, address }))
            }
            Parsed::Candidate(lease, name) => {
                self.line.insert(revision(kv.create_revision()), Waiting { lease, name });
                None
            }
        }
    }

    /// Takes over the deletion of a key. Returns the change, unless it concerns the leader alone.
    pub fn delete(&mut self, keys: &Keys, key: &[u8]) -> Option<Change> {
        match keys.parse(key)? {
            Parsed::Member(kind, name) => {
                self.members.remove(&(kind, name.clone()))?;
                Some(Change::Left { kind, name })
            }
            Parsed::Candidate(lease, name) => {
                let gone = Waiting { lease, name };
                self.line.retain(|_, waiting| *waiting != gone);
                None
            }
        }
    }
}

/// A revision from etcd: a positive number, or 0 for none.
pub(super) fn revision(etcd: i64) -> Revision {
    Revision(u64::try_from(etcd).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_made() {
        let keys = Keys::new("/coppice/", &ClusterId([0xab; 16]));
        assert_eq!(keys.all(), format!("/coppice/{}/", "ab".repeat(16)));
        for name in ["a", "rack/1", "\u{e9}"] {
            let member = keys.member(Kind::Coordinator, name);
            assert_eq!(keys.parse(member.as_bytes()), Some(Parsed::Member(Kind::Coordinator, name.to_owned())));
            let lease = LeaseId(0x7fff_0000_0000_0001);
            let candidate = keys.candidate(lease, name);
            assert_eq!(keys.parse(candidate.as_bytes()), Some(Parsed::Candidate(lease, name.to_owned())));
        }
    }

    #[test]
    fn foreign_keys_are_passed_over() {
        let keys = Keys::new("c", &ClusterId([0; 16]));
        let base = keys.all().to_owned();
        let foreign = [
            String::new(),
            "else".to_owned(),
            base.clone(),
            format!("{base}members/node/"),
            format!("{base}members/other/a"),
            format!("{base}members/a"),
            format!("{base}candidates/not-hex/a"),
            format!("{base}candidates/00000000000000001/a/").replace("/a/", "/"),
            format!("{base}leases/node/a"),
        ];
        for key in foreign {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(keys.parse(&[base.as_bytes(), b"members/node/\xff"].concat()), None);
    }
}
