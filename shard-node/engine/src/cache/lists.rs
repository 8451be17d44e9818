//! Merkle lists of nodes in memory, within a budget of bytes.
//!
//! A list of the active tree comes and goes with its node. Changes need it, so nothing else evicts
//! it. Lists of other nodes, in frozen trees and older versions, are kept once a proof has computed
//! them: those of inner nodes, which all proofs share, and those of recently proven leaves. A list
//! is valid only if its node's checksum is the expected one, since places are reused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_types::Digest;

use super::clock::{Cached, Clock};
use crate::{
    node::{Child, Node, list::MerkleList},
    place::page::Pid,
};

/// Memory for the hashes of one record in the active tree, in bytes: two hashes, and a share of its
/// leaf's slot and of the lists above. An active tree holds at most as many records as its capacity
/// and one more batch.
pub const ACTIVE_HASH_BYTES: usize = 80;
/// The largest number of parts.
const PARTS_MAX: usize = 16;
/// A part has at least this many bytes: its lists cannot use those of other parts.
const PART_BYTES_MIN: usize = 1 << 20;

/// The data that is kept about an active node's entries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) list: MerkleList,
    /// Total weight of a leaf's records in the split rule. `None` for an inner node.
    pub(crate) weight: Option<u64>,
}

impl Cached for MerkleList {
    fn size_bytes(&self) -> usize {
        Self::size_bytes(self)
    }
}

impl Cached for Known {
    fn size_bytes(&self) -> usize {
        size_of_val(&self.weight) + self.list.size_bytes()
    }
}

/// Lists by the places of their nodes.
#[derive(Debug)]
pub(crate) struct Lists {
    active: Clock<Known>,
    /// Parts by place, each with its own lock: several threads make proofs.
    proven: Vec<Mutex<Clock<MerkleList>>>,
}

impl Lists {
    /// An empty cache. The budget of the active tree follows from `capacity`; proofs have
    /// `proven_bytes_max`.
    pub(crate) fn new(proven_bytes_max: usize, capacity: u32) -> Self {
        let active = (capacity as usize).saturating_mul(ACTIVE_HASH_BYTES);
        let parts = (proven_bytes_max / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let proven = (0..parts).map(|_| Mutex::new(Clock::new(proven_bytes_max / parts))).collect();
        Self { active: Clock::new(active), proven }
    }

    /// Loads the lists of active nodes into the processor's caches.
    pub(crate) fn load_active(&self, children: &[Child]) {
        Clock::load(children.iter().map(|child| (&self.active, child.pid)));
    }

    /// Removes and returns the list of an active node.
    pub(crate) fn take(&mut self, child: &Child) -> Option<Known> {
        self.active.take(child.pid, child.checksum)
    }

    /// Keeps the list of an active node.
    pub(crate) fn keep(&mut self, child: &Child, known: Known) {
        self.active.insert(child.pid, child.checksum, known);
    }

    /// The list proof of a node's entries, given by ascending indices.
    pub(crate) fn proof(&self, child: &Child, node: &Node, indices: &[u64]) -> Vec<Digest> {
        if indices.len() == node.len() {
            // The proof is empty. A long range neither hashes the leaves in it nor evicts lists
            // that other proofs use.
            return Vec::new();
        }
        if let Some(known) = self.active.peek(child.pid, child.checksum) {
            return known.list.proof(indices);
        }
        if let Some(list) = self.part(child.pid).get(child.pid, child.checksum) {
            return list.proof(indices);
        }
        let list = MerkleList::new(node.entry_hashes());
        let proof = list.proof(indices);
        self.part(child.pid).insert(child.pid, child.checksum, list);
        proof
    }

    /// Forgets the node at a place.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.active.forget(pid);
        self.part(pid).forget(pid);
    }

    /// Forgets the lists of active nodes. Lists that proofs have computed stay valid as long as
    /// their nodes.
    pub(crate) fn drop_active(&mut self) {
        self.active.clear();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.active.bytes() + self.proven.iter().map(|part| lock(part).bytes()).sum::<usize>()
    }

    fn part(&self, pid: Pid) -> MutexGuard<'_, Clock<MerkleList>> {
        lock(&self.proven[(pid.spread() % self.proven.len() as u64) as usize])
    }
}

fn lock(part: &Mutex<Clock<MerkleList>>) -> MutexGuard<'_, Clock<MerkleList>> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use coppice_types::{Stamp, Version};
    use coppice_verify::merkle;

    use super::*;
    use crate::{
        node::{Body, Draft, HashedRecord, LeafRecord},
        place::page::PageFile,
    };

    const LEN: u64 = 9;
    /// Enough for the lists of ten leaves.
    const CAPACITY: u32 = 100;

    /// A version's leaf at a place.
    fn leaf(first: u64, version: u64) -> (Node, Child) {
        let keys: Vec<[u8; 8]> = (0..LEN).map(u64::to_be_bytes).collect();
        let stamp = Stamp::new(0, version);
        let record = |key| HashedRecord::new(LeafRecord { key, stamp, body: Body::Tombstone });
        let records: Vec<HashedRecord<'_>> = keys.iter().map(|key| record(key)).collect();
        Draft::all_new(Version(version), 0, &records).place(Pid::new(PageFile::Data, first, 1))
    }

    fn known(node: &Node) -> Known {
        Known { list: MerkleList::new(node.entry_hashes()), weight: Some(7) }
    }

    fn size_of_one() -> usize {
        let lists = Lists::new(1 << 20, CAPACITY);
        let (node, child) = leaf(0, 1);
        lists.proof(&child, &node, &[0]);
        lists.bytes()
    }

    #[test]
    fn every_proof_is_that_of_the_hashes_whatever_is_kept_and_whatever_comes_to_a_place() {
        let one = size_of_one();
        for bytes_max in [0, one, 3 * one, 12 * one, 1 << 20] {
            let mut lists = Lists::new(bytes_max, CAPACITY);
            for round in 1..5 {
                for place in 0..12 {
                    // The second half of the places has a different node in each round.
                    let (node, child) = leaf(place, if place < 6 { 1 } else { round });
                    if place % 3 == 0 {
                        lists.keep(&child, known(&node));
                    }
                    for index in [0, round, LEN - 1] {
                        let expected = merkle::list_proof(&node.entry_hashes(), &[index]);
                        assert_eq!(lists.proof(&child, &node, &[index]), expected, "place {place} in round {round}");
                        let active = CAPACITY as usize * ACTIVE_HASH_BYTES;
                        assert!(lists.active.bytes() <= active && lists.bytes() <= active + bytes_max);
                    }
                }
                lists.drop_active();
            }
        }
    }

    #[test]
    fn a_node_that_is_shown_whole_takes_no_memory() {
        let lists = Lists::new(1 << 20, CAPACITY);
        let (node, child) = leaf(0, 1);
        assert_eq!(lists.proof(&child, &node, &(0..LEN).collect::<Vec<_>>()), []);
        assert_eq!(lists.bytes(), 0);
        assert_ne!(lists.proof(&child, &node, &(1..LEN).collect::<Vec<_>>()), []);
        assert_ne!(lists.bytes(), 0);
    }

    #[test]
    fn a_list_of_a_proof_outlives_the_active_tree_and_goes_with_its_node() {
        let mut lists = Lists::new(1 << 20, CAPACITY);
        let (node, child) = leaf(0, 1);
        lists.proof(&child, &node, &[0]);
        let kept = lists.bytes();
        assert_ne!(kept, 0);
        let (changed, active) = leaf(1, 1);
        lists.keep(&active, known(&changed));
        assert_eq!(lists.bytes(), 2 * kept + size_of::<Option<u64>>());
        lists.drop_active();
        assert_eq!(lists.bytes(), kept);
        lists.forget(child.pid);
        assert_eq!(lists.bytes(), 0);
    }

    #[test]
    fn proofs_never_drive_out_what_changes_need() {
        let one = size_of_one();
        let capacity = (4 * one / ACTIVE_HASH_BYTES + 1) as u32;
        let mut lists = Lists::new(4 * one, capacity);
        let (changed, active) = leaf(0, 1);
        lists.keep(&active, known(&changed));
        for place in 1..100 {
            let (node, child) = leaf(place, 1);
            lists.proof(&child, &node, &[0]);
            assert!(lists.bytes() <= lists.active.bytes() + 4 * one);
        }
        assert_eq!(lists.take(&active), Some(known(&changed)));
    }
}
