//! Hashes of parts of trees. Along one path each waits for the one below, and those of other paths have the processor meanwhile.

use alloc::vec::Vec;

use coppice_types::{Digest, Stamp};

use super::{Hasher, LIST_NODE_TAG, RecordBody};
use crate::sha256::{LANES, pair_each};

/// Messages to be hashed, most of which have hashes of others in them.
///
/// They are hashed in waves, each in a later one than those whose hashes it has: nodes level by level, and of a level first the
/// entries, then what their lists have above them by height, then the nodes themselves.
pub(crate) struct HashPlan<'p> {
    hashes: Vec<Digest>,
    steps: Vec<Step<'p>>,
    /// The last step that was planned for each wave.
    waves: Vec<u32>,
}

/// A hash of a plan.
#[derive(Debug)]
pub(crate) struct Planned {
    at: u32,
    wave: u32,
}

struct Step<'p> {
    message: Message<'p>,
    /// Where its hash goes.
    hash: u32,
    /// The step that was planned before it for the same wave.
    before: u32,
}

/// Places are those of hashes.
enum Message<'p> {
    ListNode { children: [u32; 2] },
    Record { key: &'p [u8], stamp: Stamp, body: &'p RecordBody },
    Entry { separator: &'p [u8], child: u32 },
    LeafNode { count: u16, list: u32 },
    InnerNode { level: u8, count: u16, list: u32 },
}

const NONE: u32 = u32::MAX;

/// Waves of a level: entries, parts of lists of up to 2, 4, ... 65,536 of them, nodes.
const LEVEL_WAVES: u32 = 18;

/// Room for the proof of a key in a shard of four trees. To grow so far would take as long as to hash what one tree shows.
const HASHES: usize = 256;
const STEPS: usize = 160;
const WAVES: usize = 5 * LEVEL_WAVES as usize;

impl<'p> HashPlan<'p> {
    pub(crate) fn new() -> Self {
        Self { hashes: Vec::with_capacity(HASHES), steps: Vec::with_capacity(STEPS), waves: Vec::with_capacity(WAVES) }
    }

    /// A hash that is known.
    pub(crate) fn known(&mut self, hash: Digest) -> Planned {
        Planned { at: self.place(hash), wave: 0 }
    }

    /// [`super::list_node_hash`] above so many entries of nodes of a level, or elements of a list that are no entries, at level 0.
    pub(crate) fn list_node(&mut self, level: u8, size: u64, left: &Planned, right: &Planned) -> Planned {
        let height = (size - 1).ilog2() + 1;
        self.step(level, height, [left, right], Message::ListNode { children: [left.at, right.at] })
    }

    /// [`super::record_hash`].
    pub(crate) fn record(&mut self, key: &'p [u8], stamp: Stamp, body: &'p RecordBody) -> Planned {
        self.step(0, 0, [], Message::Record { key, stamp, body })
    }

    /// [`super::entry_hash`] in a node of this level.
    pub(crate) fn entry(&mut self, level: u8, separator: &'p [u8], child: &Planned) -> Planned {
        self.step(level, 0, [child], Message::Entry { separator, child: child.at })
    }

    /// [`super::leaf_node_hash_of`] or [`super::inner_node_hash_of`].
    pub(crate) fn node(&mut self, level: u8, count: u16, list: &Planned) -> Planned {
        let message = match level {
            0 => Message::LeafNode { count, list: list.at },
            _ => Message::InnerNode { level, count, list: list.at },
        };
        self.step(level, LEVEL_WAVES - 1, [list], message)
    }

    fn step<const N: usize>(&mut self, level: u8, at: u32, of: [&Planned; N], message: Message<'p>) -> Planned {
        // In the first wave all hashes are known.
        let wave = 1 + u32::from(level) * LEVEL_WAVES + at;
        assert!(of.iter().all(|part| part.wave < wave), "what a hash is made of is made before");
        if wave as usize >= self.waves.len() {
            self.waves.resize(wave as usize + 1, NONE);
        }
        let before = core::mem::replace(&mut self.waves[wave as usize], self.steps.len() as u32);
        let hash = self.place(Digest::default());
        self.steps.push(Step { message, hash, before });
        Planned { at: hash, wave }
    }

    /// There are as many places as steps, or more.
    fn place(&mut self, hash: Digest) -> u32 {
        let at = u32::try_from(self.hashes.len()).ok().filter(|at| *at != NONE);
        self.hashes.push(hash);
        at.expect("a proof has fewer hashes")
    }

    /// Computes all hashes.
    pub(crate) fn run(mut self) -> Hashes {
        for wave in 0..self.waves.len() {
            let mut next = self.waves[wave];
            while next != NONE {
                let (mut group, mut len) = ([NONE; LANES], 0);
                while next != NONE && len < LANES {
                    group[len] = next;
                    len += 1;
                    next = self.steps[next as usize].before;
                }
                match group[..len] {
                    [a] => self.side_by_side([a]),
                    [a, b] => self.side_by_side([a, b]),
                    [a, b, c] => self.side_by_side([a, b, c]),
                    _ => self.side_by_side(group),
                }
            }
        }
        Hashes(self.hashes)
    }

    /// Hashes steps of one wave, which are all list nodes or none.
    fn side_by_side<const N: usize>(&mut self, group: [u32; N]) {
        let steps = group.map(|at| &self.steps[at as usize]);
        let hash = |at: u32| &self.hashes[at as usize];
        let hashes = if let Message::ListNode { .. } = steps[0].message {
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
        for (at, hash) in group.into_iter().zip(hashes) {
            self.hashes[self.steps[at as usize].hash as usize] = hash;
        }
    }
}

/// The hashes of a plan.
pub(crate) struct Hashes(Vec<Digest>);

impl Hashes {
    pub(crate) fn get(&self, planned: &Planned) -> &Digest {
        &self.0[planned.at as usize]
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
            let mut plan = HashPlan::new();
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

    #[test]
    #[should_panic(expected = "made before")]
    fn a_step_of_what_is_made_later_is_refused() {
        let mut plan = HashPlan::new();
        let list = plan.known(Digest::default());
        let node = plan.node(0, 1, &list);
        plan.entry(0, b"", &node);
    }
}
