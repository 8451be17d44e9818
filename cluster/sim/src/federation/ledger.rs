//! The ledger that members follow: an honest log, a fork of it under the same key, and a log whose
//! key change the thief of the new key alone has signed.

use std::borrow::Cow;

use coppice_client::model::Api;
use coppice_env::{Rng, SimRng};
use coppice_types::{Stamp, Version};
use coppice_verify::{
    evidence::{Evidence, Shown},
    header::{Body, Header},
    merkle,
    note::VerifierKey,
};

/// A log that a member can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Honest,
    Fork,
    Stolen,
}

/// The logs. As long as they have not parted, all are the same.
pub struct Ledgers {
    apis: [Api; 3],
    key: VerifierKey,
    /// Entries that the honest log and its fork have in common, once they have parted.
    forked: Option<u64>,
    /// Entries before the change to the thief's key.
    stolen: Option<u64>,
    keys: u8,
}

impl Ledgers {
    pub fn new(rng: &mut SimRng) -> Self {
        let apis = [Api::new(), Api::new(), Api::new()];
        let key = apis[0].served().log.key.verifier().clone();
        let mut ledgers = Self { apis, key, forked: None, stolen: None, keys: 1 };
        ledgers.live(rng);
        ledgers
    }

    /// The ledger's first key.
    pub fn key(&self) -> &VerifierKey {
        &self.key
    }

    pub fn api(&self, kind: Kind) -> &Api {
        &self.apis[kind as usize]
    }

    pub fn size(&self, kind: Kind) -> u64 {
        self.api(kind).size()
    }

    pub fn common(&self) -> Option<u64> {
        self.forked
    }

    pub fn stolen_at(&self) -> u64 {
        self.stolen.unwrap_or(u64::MAX)
    }

    /// A log that there is.
    pub fn any(&self, rng: &mut SimRng) -> Kind {
        match rng.below(10) {
            0..4 if self.forked.is_some() => Kind::Fork,
            4 if self.stolen.is_some() => Kind::Stolen,
            _ => Kind::Honest,
        }
    }

    /// Whether one log can have both checkpoints.
    pub fn agree(&self, one: (Kind, u64), other: (Kind, u64)) -> bool {
        let size = one.1.min(other.1);
        let root = |kind| self.api(kind).served().log.checkpoint(size).root;
        root(one.0) == root(other.0)
    }

    /// Whether the lists of a version were read from this log, or from one that has it, too.
    pub fn was_read(&self, stamp: Stamp, kind: Kind) -> bool {
        let header = |api: &Api| api.served().log.versions.get(&stamp).map(|version| version.header.clone());
        let wanted = header(self.api(kind));
        self.apis.iter().any(|api| header(api) == wanted && api.served().sent.contains(&stamp))
    }

    /// The signed checkpoint of a log.
    pub fn note(&self, kind: Kind, size: u64) -> Vec<u8> {
        let served = self.api(kind).served();
        let note = served.log.checkpoint(size).sign(served.log.key_at(size));
        note.expect("the origin is its own").into_bytes()
    }

    pub fn entries(&self, kind: Kind, size: u64) -> Vec<Vec<u8>> {
        self.api(kind).served().log.headers[..size as usize].iter().map(Header::encode).collect()
    }

    /// Some events. Logs that have parted have their own.
    pub fn live(&mut self, rng: &mut SimRng) {
        for _ in 0..1 + rng.below(5) {
            let (what, draw, value) = (rng.below(14), rng.next_u64(), rng.next_u64());
            for index in 0..self.apis.len() {
                let parted = index == 1 && self.forked.is_some() || index == 2 && self.stolen.is_some();
                let value = if parted { value ^ index as u64 } else { value };
                // What parted keeps its key, so that only one thief has it.
                self.happen(index, if parted { 9 } else { what }, draw, value);
            }
            self.keys += u8::from(what == 2 && self.keys < 6);
        }
    }

    fn happen(&self, index: usize, what: u64, draw: u64, value: u64) {
        let api = &self.apis[index];
        let head = api.served().log.head().version.0;
        let boundary = api.served().boundary.0;
        match what {
            0 if head > boundary => api.served().log.roll_back(Version(boundary + draw % (head - boundary))),
            1 if head > boundary + 1 => {
                let mut served = api.served();
                served.boundary = Version(boundary + 1 + draw % (head - boundary - 1));
                let to = served.boundary;
                served.log.prune(to);
            }
            2 if self.keys < 6 => api.served().log.rotate(&[self.keys + 1; 32]),
            _ => api.commit(draw % 20, value),
        }
    }

    /// The ledger shows two logs from now on, and a thief has a key.
    pub fn fork(&mut self, rng: &mut SimRng) {
        if self.forked.is_none() {
            self.forked = Some(self.apis[1].size());
            self.apis[1].commit(1, u64::MAX);
        } else if self.stolen.is_none() {
            let size = self.apis[2].size();
            self.stolen = Some(size);
            let mut served = self.apis[2].served();
            served.log.rotate(&[0x77; 32]);
            // The thief does not have the old key, or not the new one.
            let header = served.log.headers.last_mut().expect("it was appended");
            let Body::Key(change) = &mut header.body else { return };
            if rng.chance(500) {
                change.by_old = [1; 64]
            } else {
                change.by_new = [1; 64]
            }
            drop(served);
            (0..3).for_each(|value| self.apis[2].commit(2, value));
        }
    }

    /// An evidence file of two checkpoints of the honest log.
    pub fn consistent_pair(&self, rng: &mut SimRng) -> Option<Vec<u8>> {
        let large = self.size(Kind::Honest);
        let small = 1 + rng.below(large);
        let served = self.apis[0].served();
        let hashes: Vec<_> = served.log.headers.iter().map(Header::hash).collect();
        let shown = Shown::Root { size: small, root: served.log.checkpoint(small).root };
        let path = if small == large { Vec::new() } else { merkle::consistency_path(&hashes, small) };
        drop(served);
        let (a, b) = (self.note(Kind::Honest, small), self.note(Kind::Honest, large));
        let evidence = Evidence { key_changes: Vec::new(), shown, path, a: Cow::Owned(a), b: Cow::Owned(b) };
        evidence.encode().ok()
    }
}
