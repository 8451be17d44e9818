//! The inodes of a simulated file system, with their durable and pending content.

use std::collections::BTreeMap;

use crate::{Rng, SimRng};

/// The unit that a disk writes atomically.
const SECTOR_BYTES: u64 = 512;

pub(super) type InodeId = usize;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileInode {
    pub data: Vec<u8>,
    pub durable: Vec<u8>,
    pub pending: Vec<Change>,
    /// Changes that a failed sync has given up. Reads see them, but no sync makes them durable.
    pub doomed: Vec<Change>,
}

/// An atomic change of names, as (directory, name, inode): the name to set, and the name to unset
/// with its old inode.
#[derive(Clone, Debug)]
pub(super) struct NameChange {
    pub set: Option<(InodeId, String, InodeId)>,
    pub unset: Option<(InodeId, String, InodeId)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DirInode {
    pub names: BTreeMap<String, InodeId>,
    pub durable: BTreeMap<String, InodeId>,
    pub pending: Vec<NameChange>,
}

#[derive(Clone, Debug)]
pub(super) enum Inode {
    File(FileInode),
    Dir(DirInode),
}

pub(super) fn index(value: u64) -> usize {
    usize::try_from(value).expect("simulated files fit in memory")
}

fn put(data: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let start = index(offset);
    let end = start + bytes.len();
    if data.len() < end {
        data.resize(end, 0);
    }
    data[start..end].copy_from_slice(bytes);
}

fn apply(data: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes } => put(data, bytes, *offset),
        Change::SetLen(len) => data.resize(index(*len), 0),
    }
}

/// The parts of a change outside of `start..end`.
fn without(change: Change, start: u64, end: u64) -> Vec<Change> {
    let Change::Write { offset, bytes } = change else { return vec![change] };
    let cut = |at: u64| index(at.saturating_sub(offset)).min(bytes.len());
    let (head, tail) = (cut(start), cut(end));
    let piece = |offset, bytes: &[u8]| Change::Write { offset, bytes: bytes.to_vec() };
    let pieces = [piece(offset, &bytes[..head]), piece(offset + tail as u64, &bytes[tail..])];
    pieces.into_iter().filter(|piece| matches!(piece, Change::Write { bytes, .. } if !bytes.is_empty())).collect()
}

impl FileInode {
    pub fn change(&mut self, change: Change) {
        apply(&mut self.data, &change);
        self.pending.push(change);
    }

    pub fn sync(&mut self) {
        for change in self.pending.drain(..) {
            apply(&mut self.durable, &change);
            // A change that was given up must not come back over content that is durable now.
            let doomed = self.doomed.drain(..);
            self.doomed = match &change {
                Change::Write { offset, bytes } => {
                    let end = offset + bytes.len() as u64;
                    doomed.flat_map(|old| without(old, *offset, end)).collect()
                }
                Change::SetLen(len) => doomed
                    .filter(|old| !matches!(old, Change::SetLen(_)))
                    .flat_map(|old| without(old, *len, u64::MAX))
                    .collect(),
            };
        }
    }

    /// Inverts a bit, durable or not.
    pub fn flip_bit(&mut self, at: usize, bit: u8) {
        self.data[at] ^= 1 << bit;
        if let Some(byte) = self.durable.get_mut(at) {
            *byte ^= 1 << bit;
        }
        for change in self.doomed.iter_mut().chain(&mut self.pending) {
            if let Change::Write { offset: start, bytes } = change {
                let byte = at.checked_sub(index(*start)).and_then(|at| bytes.get_mut(at));
                byte.into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
        }
    }

    /// The bytes that are left after a power failure.
    pub fn survivor(&self, rng: &mut SimRng) -> Vec<u8> {
        let mut data = self.durable.clone();
        let keep_per_mille = rng.below(1001);
        for change in self.doomed.iter().chain(&self.pending) {
            match change {
                Change::SetLen(_) if rng.chance(keep_per_mille) => apply(&mut data, change),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } => keep_some_sectors(&mut data, *offset, bytes, keep_per_mille, rng),
            }
        }
        data
    }
}

fn keep_some_sectors(data: &mut Vec<u8>, offset: u64, bytes: &[u8], keep_per_mille: u64, rng: &mut SimRng) {
    let end = offset + bytes.len() as u64;
    let mut start = offset;
    while start < end {
        let stop = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
        if rng.chance(keep_per_mille) {
            put(data, &bytes[index(start - offset)..index(stop - offset)], start);
        } else if rng.chance(200) && data.len() < index(stop) {
            data.resize(index(stop), 0);
        }
        start = stop;
    }
}
