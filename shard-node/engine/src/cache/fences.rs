//! Fences: the parts of a frozen tree's inner node that a get needs.
//!
//! A get goes to one child by its separator and needs no hash. The whole node takes about a hundred
//! bytes for each child. Fences take about 14: the first bytes in which separators differ, the
//! child's place relative to its neighbours', and its checksum. So the fences of all inner nodes
//! fit into a seventh of the memory.

use std::cmp::Ordering;

use coppice_types::Digest;

use super::clock::Cached;
use crate::{
    node::{Child, Node},
    place::page::Pid,
};

/// Longest part of a separator, after the prefix that all separators of a node share. Parts are
/// compared as one number.
const WIDTH_MAX: usize = 8;
const CHECKSUM_BYTES: usize = 8;

/// The children of an inner node, each with a part of its separator. The first child has none.
#[derive(Debug)]
pub(crate) struct Fences {
    count: u16,
    /// Length of the prefix that all separators share.
    prefix: u16,
    /// Bytes kept of each separator after the prefix. All parts differ; shorter ones are padded
    /// with zeroes.
    width: u8,
    /// The parts hold all separators completely.
    whole: bool,
    /// Bytes of each place, relative to the lowest one.
    place_width: u8,
    lowest: u64,
    /// The prefix, then the parts of the separators (big-endian), then place and checksum of each
    /// child (little-endian).
    bytes: Box<[u8]>,
}

impl Fences {
    /// The fences of an inner node; `None` if separators differ too late.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let count = node.len();
        let (first, last) = (node.key(1.min(count - 1)), node.key(count - 1));
        let prefix = first.iter().zip(last).take_while(|(one, other)| one == other).count();
        let parts: Vec<u64> = (1..count).map(|index| part(&node.key(index)[prefix..])).collect();
        let longest = (1..count).map(|index| node.key(index).len() - prefix).max().unwrap_or(0);
        let width = longest.min(WIDTH_MAX);
        if !parts.is_sorted_by(|one, other| one < other) {
            return None;
        }
        let children: Vec<Child> = (0..count).map(|index| node.child(index)).collect();
        let places = children.iter().map(|child| child.pid.to_u64());
        let (lowest, highest) = (places.clone().min()?, places.max()?);
        let place_width = (u64::BITS - (highest - lowest).leading_zeros()).div_ceil(8) as usize;
        let mut bytes = Vec::with_capacity(prefix + parts.len() * width + count * (place_width + CHECKSUM_BYTES));
        bytes.extend_from_slice(&first[..prefix]);
        parts.iter().for_each(|part| bytes.extend_from_slice(&part.to_be_bytes()[..width]));
        for child in &children {
            bytes.extend_from_slice(&(child.pid.to_u64() - lowest).to_le_bytes()[..place_width]);
            bytes.extend_from_slice(&child.checksum.to_le_bytes());
        }
        Some(Self {
            count: u16::try_from(count).ok()?,
            prefix: u16::try_from(prefix).ok()?,
            width: width as u8,
            whole: width == longest,
            place_width: place_width as u8,
            lowest,
            bytes: bytes.into(),
        })
    }

    /// The child that may hold a key, without its hash. Returns `false` if its separator may be
    /// above the key, which then belongs to the previous child.
    pub(crate) fn child_of(&self, key: &[u8]) -> (Child, bool) {
        let (prefix, rest) = self.bytes.split_at(usize::from(self.prefix));
        let width = usize::from(self.width);
        let separators = usize::from(self.count) - 1;
        let head = &key[..key.len().min(prefix.len())];
        let (index, sure) = match head.cmp(prefix) {
            Ordering::Less => (0, true),
            Ordering::Greater => (separators, true),
            Ordering::Equal => {
                let sought = shortened(part(&key[prefix.len()..]), width);
                let separator = |at: usize| shortened(part(&rest[at * width..(at + 1) * width]), width);
                let (mut index, mut end) = (0, separators);
                while index < end {
                    let middle = index + (end - index) / 2;
                    if separator(middle) <= sought { index = middle + 1 } else { end = middle }
                }
                // A key that has all bytes of a part is not below a separator that ends there.
                let is_above = self.whole && key.len() >= prefix.len() + width;
                (index, is_above || index == 0 || separator(index - 1) != sought)
            }
        };
        (self.child(index), sure)
    }

    fn child(&self, index: usize) -> Child {
        let [count, width, place_width] = [usize::from(self.count), self.width.into(), self.place_width.into()];
        let at = usize::from(self.prefix) + (count - 1) * width + index * (place_width + CHECKSUM_BYTES);
        let number = |at: usize, len: usize| {
            let mut number = [0; 8];
            number[..len].copy_from_slice(&self.bytes[at..at + len]);
            u64::from_le_bytes(number)
        };
        let (place, checksum) = (self.lowest + number(at, place_width), number(at + place_width, CHECKSUM_BYTES));
        Child { pid: Pid::known(place), checksum, hash: Digest::default() }
    }

    /// Heap bytes of the fences.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Cached for Fences {
    fn size_bytes(&self) -> usize {
        Self::size_bytes(self)
    }
}

/// The first eight bytes as a number, padded with zeroes. Different numbers order like the byte
/// strings.
fn part(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut part = [0; WIDTH_MAX];
            part[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(part)
        }
    }
}

/// The first `width` bytes of a part.
fn shortened(part: u64, width: usize) -> u64 {
    part.checked_shr(u64::BITS - 8 * width as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng};
    use coppice_types::Version;
    use coppice_verify::rules;

    use super::*;
    use crate::{
        node::{ChildEntry, Draft},
        place::page::PageFile,
    };

    /// A node with these separators after its first child.
    fn inner(separators: &[Vec<u8>], place: impl Fn(usize) -> Pid) -> Node {
        let entry = |(index, separator): (usize, &[u8])| ChildEntry {
            separator: separator.to_vec(),
            child: Child { pid: place(index), checksum: u64::MAX - index as u64, hash: Digest([index as u8; 32]) },
        };
        let separators = std::iter::once(&b""[..]).chain(separators.iter().map(Vec::as_slice));
        let entries: Vec<ChildEntry> = separators.enumerate().map(entry).collect();
        let draft = Draft::all_new(Version(1), 1, &entries);
        let pid = Pid::new(PageFile::Index, 4, draft.pages());
        draft.place(pid).0
    }

    /// Keys with long common parts, made of few different bytes.
    fn keys(rng: &mut SimRng, prefix: &[u8], count: u64) -> Vec<Vec<u8>> {
        let mut key = || {
            let tail = (0..rng.below(10)).map(|_| [0, 0, 1, b'a', 0xff][rng.below(5) as usize]);
            prefix.iter().copied().chain(tail).collect::<Vec<u8>>()
        };
        (0..count).map(|_| key()).filter(|key| !key.is_empty()).collect()
    }

    #[test]
    fn fences_lead_where_the_node_does_or_say_that_they_may_not() {
        let mut rng = SimRng::new(7);
        let (mut sure, mut unsure, mut none) = (0, 0, 0);
        for _ in 0..3000 {
            let prefix: Vec<u8> = (0..rng.below(5)).map(|_| rng.below(3) as u8).collect();
            let count = 1 + rng.below(30);
            let mut separators = keys(&mut rng, &prefix, count);
            separators.sort();
            separators.dedup();
            let first = rng.below(1 << 40);
            let node = match rng.below(2) {
                0 => inner(&separators, |index| Pid::new(PageFile::Data, first + 3 * index as u64, 2)),
                _ => inner(&separators, |index| match index % 3 {
                    0 => Pid::of_patch(first, index as u8),
                    _ => Pid::new(PageFile::Data, index as u64, 1),
                }),
            };
            let Some(fences) = Fences::of(&node) else {
                none += 1;
                continue;
            };
            let mut sought = keys(&mut rng, &prefix, 20);
            sought.extend(keys(&mut rng, b"", 20));
            sought.extend(separators.iter().cloned());
            for key in sought {
                let right = node.child_of(&key);
                let (child, is_sure) = fences.child_of(&key);
                let leads_to = |index: usize| {
                    let Child { pid, checksum, .. } = node.child(index);
                    (pid, checksum) == (child.pid, child.checksum)
                };
                match is_sure {
                    true => sure += 1,
                    false => unsure += 1,
                }
                assert!(leads_to(right) || !is_sure && leads_to(right + 1), "{key:?} in {separators:?}");
                assert!(!separators.contains(&key) || leads_to(right), "a separator is in its own child");
            }
        }
        assert!(sure > 1000 && unsure > 100 && none > 0, "{sure}, {unsure}, {none}");
    }

    #[test]
    fn hashed_keys_take_little_and_are_never_unsure() {
        let mut rng = SimRng::new(8);
        let mut key = || (0..32).map(|at| if at == 0 { 0x42 } else { rng.below(256) as u8 }).collect::<Vec<u8>>();
        let mut keys: Vec<Vec<u8>> = (0..60).map(|_| key()).collect();
        keys.sort();
        let between = |pair: &[Vec<u8>]| rules::separator(&pair[0], &pair[1]).to_vec();
        let separators: Vec<Vec<u8>> = keys.windows(2).map(between).collect();
        let node = inner(&separators, |index| Pid::new(PageFile::Data, index as u64, 1));
        let fences = Fences::of(&node).expect("they differ");
        assert!(fences.size_bytes() <= 60 * 12, "{}", fences.size_bytes());
        assert!(keys.iter().chain(&(0..10_000).map(|_| key()).collect::<Vec<_>>()).all(|key| fences.child_of(key).1));
    }

    #[test]
    fn separators_that_differ_late_have_none() {
        let alike = |last: u8| [b"first".as_slice(), &[0; WIDTH_MAX], &[last]].concat();
        let node = |separators: &[Vec<u8>]| inner(separators, |index| Pid::new(PageFile::Data, index as u64, 1));
        assert!(Fences::of(&node(&[alike(1), alike(2)])).is_some(), "what they have in common does not count");
        assert!(Fences::of(&node(&[b"a".to_vec(), alike(1), alike(2)])).is_none());
    }
}
