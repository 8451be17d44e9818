//! Which nodes' Merkle lists are in memory, within a budget of bytes.
//!
//! Lists of the active tree's nodes come with the nodes and go with them: changes need them, so nothing else drives them out.
//! Lists of other nodes, those of frozen trees and of older versions, are kept once a proof has computed them: the inner nodes', which
//! all proofs share, and those of leaves that were proven of late. Both are believed by the checksum of the node, as nodes are, since
//! places are used again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_types::Digest;

use super::clock::{Cached, Clock};
use crate::{
    node::{Child, Node, list::MerkleList},
    place::page::Pid,
};

/// What the hashes of a record of the active tree take in memory, in bytes: two of them, and its share in a leaf's slot and in the lists
/// above. An active tree has as many records as its capacity says, and those of a batch.
pub const ACTIVE_HASH_BYTES: usize = 80;
/// Most parts.
const PARTS_MAX: usize = 16;
/// Less than this is not cut: lists of a part compete for its bytes alone.
const PART_BYTES_MIN: usize = 1 << 20;

/// What is known of the entries of an active node, beside the node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) list: MerkleList,
    /// What the split rule counts, of all records of a leaf. Of an inner node it is not known.
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
    /// In parts by place, each behind a lock of its own: proofs are made on several threads.
    proven: Vec<Mutex<Clock<MerkleList>>>,
}

impl Lists {
    /// None yet. The active tree has what one of `capacity` records needs, and proofs have so many bytes beside it.
    pub(crate) fn new(proven_bytes_max: usize, capacity: u32) -> Self {
        let active = (capacity as usize).saturating_mul(ACTIVE_HASH_BYTES);
        let parts = (proven_bytes_max / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let proven = (0..parts).map(|_| Mutex::new(Clock::new(proven_bytes_max / parts))).collect();
        Self { active: Clock::new(active), proven }
    }

    /// Brings what is known of active nodes near the processor.
    pub(crate) fn load_active(&self, children: &[Child]) {
        Clock::load(children.iter().map(|child| (&self.active, child.pid)));
    }

    /// Takes what is known of an active node.
    pub(crate) fn take(&mut self, child: &Child) -> Option<Known> {
        self.active.take(child.pid, child.checksum)
    }

    /// Keeps what is known of an active node.
    pub(crate) fn keep(&mut self, child: &Child, known: Known) {
        self.active.insert(child.pid, child.checksum, known);
    }

    /// The list proof of entries of any node, whose indices ascend.
    pub(crate) fn proof(&self, child: &Child, node: &Node, indices: &[u64]) -> Vec<Digest> {
        if indices.len() == node.len() {
            // Nothing is left to show: a long range doesn't hash the leaves in it, nor drive out what other proofs use.
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

    /// Forgets the node of a place.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.active.forget(pid);
        self.part(pid).forget(pid);
    }

    /// Forgets what active nodes had. What proofs have computed holds for as long as its nodes.
    pub(crate) fn drop_active(&mut self) {
        self.active.clear();
    }

    /// Bytes of all lists.
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

    /// A leaf of a version, at a place.
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
                    // The second half of the places has another node in each round.
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
