//! Plans the hashes of parts of trees, and computes many of them side by side.
//!
//! Along one path each hash waits for the one below it. Hashes of other paths use the processor
//! meanwhile.

use alloc::vec::Vec;
use core::mem;

use coppice_types::{Digest, Stamp};

use super::{
    list::LIST_NODE_TAG,
    message::{Hasher, RecordBody},
};
use crate::sha256::{LANES, pair_each};

/// Messages to hash, most of which contain hashes of other messages.
///
/// They are hashed in waves. A message is in a later wave than all messages whose hashes it
/// contains. Nodes are hashed level by level. Within a level the entries come first, then the inner
/// nodes of their lists by height, then the tree nodes. So all messages of a wave are of one kind.
pub(crate) struct HashPlan<'p> {
    hashes: Vec<Digest>,
    /// The messages that are not hashed yet.
    steps: Vec<Step<'p>>,
    /// For each wave, the step that was planned last for it.
    waves: Vec<u32>,
}

/// A hash of a plan: its place among the hashes, and the wave that computes it.
#[derive(Debug)]
pub(crate) struct Planned {
    place: u32,
    wave: u32,
}

struct Step<'p> {
    message: Message<'p>,
    /// Index of its hash.
    place: u32,
    /// The step that was planned before this one for the same wave, or [`NONE`].
    before: u32,
}

/// A message of a plan. A `u32` for a child or list is the place of its hash.
enum Message<'p> {
    ListNode { children: [u32; 2] },
    Record { key: &'p [u8], stamp: Stamp, body: &'p RecordBody },
    Entry { separator: &'p [u8], child: u32 },
    LeafNode { count: u16, list: u32 },
    InnerNode { level: u8, count: u16, list: u32 },
}

/// The value for the absence of a step.
const NONE: u32 = u32::MAX;

/// Number of waves of a level: one for entries, sixteen for parts of lists of up to 2, 4, ...
/// 65,536 entries, one for nodes.
const LEVEL_WAVES: u32 = 18;

/// Number of steps after which the plan hashes them before it takes more: a step takes more memory
/// than its hash.
const STEPS_MAX: usize = 4096;

impl<'p> HashPlan<'p> {
    /// An empty plan with room for this many steps, since growing takes longer than hashing a few.
    pub(crate) fn new(steps: usize) -> Self {
        let steps = steps.min(STEPS_MAX);
        Self {
            hashes: Vec::with_capacity(2 * steps),
            steps: Vec::with_capacity(steps),
            waves: Vec::with_capacity(steps),
        }
    }

    /// A hash that needs no computation.
    pub(crate) fn known(&mut self, hash: Digest) -> Planned {
        Planned { place: self.place(hash), wave: 0 }
    }

    /// Plans [`super::list_node_hash`] above `size` entries of nodes of this level. A list outside
    /// of any node has level 0, and is the only one in its plan.
    pub(crate) fn list_node(&mut self, level: u8, size: u64, left: &Planned, right: &Planned) -> Planned {
        let height = (size - 1).ilog2() + 1;
        self.step(level, height, [left, right], Message::ListNode { children: [left.place, right.place] })
    }

    /// Plans [`super::record_hash`].
    pub(crate) fn record(&mut self, key: &'p [u8], stamp: Stamp, body: &'p RecordBody) -> Planned {
        self.step(0, 0, [], Message::Record { key, stamp, body })
    }

    /// Plans [`super::entry_hash`] in a node of this level.
    pub(crate) fn entry(&mut self, level: u8, separator: &'p [u8], child: &Planned) -> Planned {
        self.step(level, 0, [child], Message::Entry { separator, child: child.place })
    }

    /// Plans [`super::leaf_node_hash_of`] at level 0, and [`super::inner_node_hash_of`] above.
    pub(crate) fn node(&mut self, level: u8, count: u16, list: &Planned) -> Planned {
        let message = match level {
            0 => Message::LeafNode { count, list: list.place },
            _ => Message::InnerNode { level, count, list: list.place },
        };
        self.step(level, LEVEL_WAVES - 1, [list], message)
    }

    fn step<const N: usize>(&mut self, level: u8, height: u32, of: [&Planned; N], message: Message<'p>) -> Planned {
        // Wave 0 holds hashes that need no computation.
        let wave = 1 + u32::from(level) * LEVEL_WAVES + height;
        assert!(of.iter().all(|part| part.wave < wave), "what a hash is made of is made before");
        if self.steps.len() == STEPS_MAX {
            self.hash_steps();
        }
        if wave as usize >= self.waves.len() {
            self.waves.resize(wave as usize + 1, NONE);
        }
        let before = mem::replace(&mut self.waves[wave as usize], self.steps.len() as u32);
        let place = self.place(Digest::default());
        self.steps.push(Step { message, place, before });
        Planned { place, wave }
    }

    fn place(&mut self, hash: Digest) -> u32 {
        let place = u32::try_from(self.hashes.len()).expect("a proof has fewer hashes");
        self.hashes.push(hash);
        place
    }

    /// Computes all hashes.
    pub(crate) fn run(mut self) -> Hashes {
        self.hash_steps();
        Hashes(self.hashes)
    }

    fn hash_steps(&mut self) {
        for last in self.waves.drain(..) {
            let mut next = self.steps.get(last as usize);
            while let Some(first) = next {
                let (mut group, mut len) = ([first; LANES], 0);
                while let Some(step) = next.filter(|_| len < LANES) {
                    group[len] = step;
                    len += 1;
                    next = self.steps.get(step.before as usize);
                }
                match group[..len] {
                    [a] => side_by_side([a], &mut self.hashes),
                    [a, b] if LANES > 1 => side_by_side([a, b], &mut self.hashes),
                    [a, b, c] if LANES > 1 => side_by_side([a, b, c], &mut self.hashes),
                    _ => side_by_side(group, &mut self.hashes),
                }
            }
        }
        self.steps.clear();
    }
}

const _: () = assert!(LANES == 4 || LANES == 1, "groups of one to three are named above");

/// Hashes up to four steps of one wave.
fn side_by_side<const N: usize>(steps: [&Step<'_>; N], hashes: &mut [Digest]) {
    let hash = |place: u32| &hashes[place as usize];
    let made = if let Message::ListNode { .. } = steps[0].message {
        let children = steps.map(|step| match step.message {
            Message::ListNode { children } => children.map(hash),
            _ => unreachable!("a wave of list nodes"),
        });
        pair_each(LIST_NODE_TAG, children)
    } else {
        let mut hashers = [const { Hasher::new() }; N];
        for (hasher, step) in hashers.iter_mut().zip(steps) {
            match step.message {
                Message::ListNode { .. } => unreachable!("no wave of list nodes"),
                Message::Record { key, stamp, body } => hasher.record(key, stamp, body),
                Message::Entry { separator, child } => hasher.entry(separator, hash(child)),
                Message::LeafNode { count, list } => hasher.leaf_node(count, hash(list)),
                Message::InnerNode { level, count, list } => hasher.inner_node(level, count, hash(list)),
            };
        }
        Hasher::finish_each(&mut hashers)
    };
    steps.iter().zip(made).for_each(|(step, hash)| hashes[step.place as usize] = hash);
}

/// The computed hashes of a plan.
pub(crate) struct Hashes(Vec<Digest>);

impl Hashes {
    pub(crate) fn get(&self, planned: &Planned) -> &Digest {
        &self.0[planned.place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hash::{self, sha256},
        merkle,
    };

    #[test]
    fn nodes_of_every_kind_side_by_side_are_hashed_as_each_alone() {
        let stamp = Stamp::new(2, 3);
        for paths in 1_u8..11 {
            let key = |path: u8| alloc::vec![path; [1, 32, 127, 128, 500][usize::from(path) % 5]];
            let keys: Vec<_> = (0..paths).map(key).collect();
            let bodies: Vec<_> = keys
                .iter()
                .map(|key| if key[0] % 4 == 3 { RecordBody::Tombstone } else { RecordBody::put(key) })
                .collect();
            let mut plan = HashPlan::new(8);
            let (mut planned, mut expected) = (Vec::new(), Vec::new());
            for (path, (key, body)) in (0..paths).zip(keys.iter().zip(&bodies)) {
                // Paths of several lengths, in lists of several sizes.
                let (mut above, mut hash) = (plan.record(key, stamp, body), hash::record_hash(key, stamp, body));
                for level in 0..path % 4 {
                    if level > 0 {
                        (above, hash) = (plan.entry(level, key, &above), hash::entry_hash(key, &hash));
                    }
                    let mut list: Vec<Digest> = (0..path + 3).map(|seed| sha256(&[seed, level])).collect();
                    let index = usize::from(path) * 7 % list.len();
                    list[index] = hash;
                    let proof = merkle::list_proof(&list, &[index as u64]);
                    let revealed = Vec::from([(index as u64, above)]);
                    let root =
                        merkle::plan_list_root(&mut plan, level, list.len() as u64, revealed, &proof).expect("fits");
                    above = plan.node(level, u16::from(path), &root);
                    hash = match level {
                        0 => hash::leaf_node_hash_of(u16::from(path), &merkle::mth(&list)),
                        _ => hash::inner_node_hash_of(level, u16::from(path), &merkle::mth(&list)),
                    };
                }
                planned.push(above);
                expected.push(hash);
            }
            let hashes = plan.run();
            let made: Vec<Digest> = planned.iter().map(|planned| *hashes.get(planned)).collect();
            assert_eq!(made, expected, "{paths} paths");
        }
    }

    /// Waves repeat if there are more steps than a plan holds. A node with the most entries has the
    /// highest list.
    #[test]
    fn many_and_large_nodes_are_hashed_as_each_alone() {
        let (stamp, body) = (Stamp::new(2, 3), RecordBody::put(b"value"));
        let keys: Vec<[u8; 4]> = (0..3 * u32::from(u16::MAX)).map(u32::to_be_bytes).collect();
        let mut plan = HashPlan::new(8);
        let mut roots = Vec::new();
        for leaf in keys.chunks(u16::MAX.into()) {
            let records = (0..).zip(leaf).map(|(index, key)| (index, plan.record(key, stamp, &body))).collect();
            let list = merkle::plan_list_root(&mut plan, 0, leaf.len() as u64, records, &[]).expect("all are shown");
            let node = plan.node(0, u16::MAX, &list);
            roots.push(plan.entry(1, &leaf[0], &node));
        }
        let list = merkle::plan_list_root(&mut plan, 1, 3, (0..).zip(roots).collect(), &[]).expect("all are shown");
        let root = plan.node(1, 3, &list);
        let entry = |leaf: &[[u8; 4]]| {
            let records: Vec<Digest> = leaf.iter().map(|key| hash::record_hash(key, stamp, &body)).collect();
            hash::entry_hash(&leaf[0], &hash::leaf_node_hash(&records))
        };
        let entries: Vec<Digest> = keys.chunks(u16::MAX.into()).map(entry).collect();
        assert_eq!(*plan.run().get(&root), hash::inner_node_hash(1, &entries));
    }

    #[test]
    #[should_panic(expected = "made before")]
    fn a_step_whose_input_is_made_later_is_refused() {
        let mut plan = HashPlan::new(8);
        let list = plan.known(Digest::default());
        let node = plan.node(0, 1, &list);
        plan.entry(0, b"", &node);
    }
}
