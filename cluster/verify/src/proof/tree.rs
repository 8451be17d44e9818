//! `list of trees` and its parts (`docs/verification.md` section 12): the part of a proof that the
//! engine of one shard makes.

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{
    Digest, Stamp,
    codec::{Error, Reader, Writer},
};

use super::digests::take_digests;
use crate::{hash::RecordBody, shard_map::KEY_BYTES_MAX};

/// Highest level of a tree's root. It bounds every recursion over a tree part.
pub const LEVEL_MAX: u8 = 32;
/// Most trees of a shard, and so the largest `tree_limit`.
pub const TREES_MAX: usize = 16;

/// Least length of an entry: index, kind, epoch, version and length of the key, of one byte each.
const ENTRY_BYTES_MIN: usize = 5;

/// All trees of a shard, youngest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeList<'a> {
    /// At least one, at most [`TREES_MAX`].
    pub trees: Vec<Tree<'a>>,
}

/// One tree, with the part of it that the query needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree<'a> {
    /// Level of the root, at most [`LEVEL_MAX`].
    pub level: u8,
    /// Number of records in the whole tree, tombstones included.
    pub entries: u64,
    /// The root.
    pub root: Subtree<'a>,
}

/// A node: a part of it, or its hash alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subtree<'a> {
    /// The node with some of its entries.
    Expanded(NodePart<'a>),
    /// The node's hash.
    Hash(Digest),
}

/// `node part`: some of the entries of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart<'a> {
    /// Number of entries in the node.
    pub count: u16,
    /// The revealed entries with their indices, which ascend.
    pub entries: Vec<(u16, Entry<'a>)>,
    /// List proof of the revealed entries.
    pub hashes: Vec<Digest>,
}

/// A revealed entry of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// An entry of a leaf.
    Record {
        /// The key, 1 to 512 bytes.
        key: Cow<'a, [u8]>,
        /// Stamp of the commit that made the change.
        stamp: Stamp,
        /// The value's length and hash, or a tombstone.
        body: RecordBody,
    },
    /// An entry of an inner node.
    Child {
        /// At most 512 bytes. No key in the child is below it, and all keys in the children before
        /// it are. It is empty in a node's first entry.
        separator: Cow<'a, [u8]>,
        /// The child, one level lower.
        child: Subtree<'a>,
    },
}

impl Entry<'_> {
    /// The key of a record, or the separator of a child.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Record { key, .. } => key,
            Self::Child { separator, .. } => separator,
        }
    }
}

impl<'a> TreeList<'a> {
    /// The bytes of the list, as in a shard part.
    ///
    /// # Panics
    /// If there are more than [`TREES_MAX`] trees, a level is above [`LEVEL_MAX`], or an entry does
    /// not fit the level of its node.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(&mut out);
        out.into_bytes()
    }

    /// Decodes the bytes of a list.
    ///
    /// # Errors
    /// If the bytes are not a list of trees: truncated, too long, or over a limit of section 16.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let list = Self::read(&mut input)?;
        input.finish()?;
        Ok(list)
    }

    pub(super) fn write(&self, out: &mut Writer) {
        assert!(self.trees.len() <= TREES_MAX, "no shard has more trees");
        out.u8(self.trees.len() as u8);
        for tree in &self.trees {
            assert!(tree.level <= LEVEL_MAX, "no tree is higher");
            out.u8(tree.level);
            out.short(tree.entries);
            tree.root.write(tree.level, out);
        }
    }

    pub(super) fn read(input: &mut Reader<'a>) -> Result<Self, Error> {
        let count = input.u8()?;
        if !(1..=TREES_MAX).contains(&usize::from(count)) {
            return Err(Error::Malformed("number of trees"));
        }
        let mut trees = Vec::new();
        for _ in 0..count {
            let level = input.u8()?;
            if level > LEVEL_MAX {
                return Err(Error::Malformed("level of a tree"));
            }
            trees.push(Tree { level, entries: input.short()?, root: Subtree::read(level, input)? });
        }
        Ok(Self { trees })
    }
}

impl<'a> Subtree<'a> {
    fn write(&self, level: u8, out: &mut Writer) {
        match self {
            Self::Expanded(node) => {
                out.u8(1);
                node.write(level, out);
            }
            Self::Hash(hash) => {
                out.u8(0);
                out.digest(hash);
            }
        }
    }

    fn read(level: u8, input: &mut Reader<'a>) -> Result<Self, Error> {
        if input.flag("node flag")? {
            Ok(Self::Expanded(NodePart::read(level, input)?))
        } else {
            Ok(Self::Hash(input.digest()?))
        }
    }
}

impl<'a> NodePart<'a> {
    fn write(&self, level: u8, out: &mut Writer) {
        out.short(self.count.into());
        out.short(self.entries.len() as u64);
        for (index, entry) in &self.entries {
            out.short((*index).into());
            match (level.checked_sub(1), entry) {
                (None, Entry::Record { key, stamp, body }) => write_record(out, key, *stamp, body),
                (Some(below), Entry::Child { separator, child }) => {
                    write_key(out, separator);
                    child.write(below, out);
                }
                _ => panic!("leaves hold records, inner nodes hold children"),
            }
        }
        out.short(self.hashes.len() as u64);
        self.hashes.iter().for_each(|hash| out.digest(hash));
    }

    fn read(level: u8, input: &mut Reader<'a>) -> Result<Self, Error> {
        let count = input.short_as("number of a node's entries")?;
        let revealed: u16 = input.short_as("number of revealed entries")?;
        // Reserves no more than the bytes at hand can hold.
        let mut entries = Vec::with_capacity(usize::from(revealed).min(input.remaining() / ENTRY_BYTES_MIN));
        for _ in 0..revealed {
            let index = input.short_as("index of an entry")?;
            let entry = match level.checked_sub(1) {
                None => read_record(input)?,
                Some(below) => {
                    Entry::Child { separator: Cow::Borrowed(read_key(input, 0)?), child: Subtree::read(below, input)? }
                }
            };
            entries.push((index, entry));
        }
        let hashes: u16 = input.short_as("number of hashes")?;
        Ok(Self { count, entries, hashes: take_digests(input, hashes.into())? })
    }
}

fn write_key(out: &mut Writer, key: &[u8]) {
    out.short(key.len() as u64);
    out.raw(key);
}

/// Reads a key, or with a `least` of 0 a separator, which may be empty.
fn read_key<'a>(input: &mut Reader<'a>, least: usize) -> Result<&'a [u8], Error> {
    let len: u16 = input.short_as("length of a key")?;
    if !(least..=KEY_BYTES_MAX).contains(&usize::from(len)) {
        return Err(Error::Malformed("length of a key"));
    }
    input.take(len.into())
}

fn write_record(out: &mut Writer, key: &[u8], stamp: Stamp, body: &RecordBody) {
    out.u8(match body {
        RecordBody::Put { .. } => 0,
        RecordBody::Tombstone => 1,
    });
    out.short(stamp.epoch.0);
    out.short(stamp.version.0);
    write_key(out, key);
    if let RecordBody::Put { value_len, value_hash } = body {
        out.short((*value_len).into());
        out.digest(value_hash);
    }
}

fn read_record<'a>(input: &mut Reader<'a>) -> Result<Entry<'a>, Error> {
    let tombstone = input.flag("record kind")?;
    let stamp = Stamp::new(input.short()?, input.short()?);
    let key = Cow::Borrowed(read_key(input, 1)?);
    let body = if tombstone {
        RecordBody::Tombstone
    } else {
        RecordBody::Put { value_len: input.short_as("length of a value")?, value_hash: input.digest()? }
    };
    Ok(Entry::Record { key, stamp, body })
}

#[cfg(test)]
mod tests;
