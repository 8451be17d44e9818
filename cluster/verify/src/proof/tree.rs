//! `list of trees`: what an engine proves of one shard, and the parts of trees in it.

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{
    Digest, Stamp,
    codec::{Error, Reader, Writer},
};

use super::{read_digests, write_digests};
use crate::hash::RecordBody;

/// Highest level of a tree's root. It bounds every recursion over a tree part.
pub const LEVEL_MAX: u8 = 32;
/// Most trees of a shard: no `tree_limit` is above.
pub const TREES_MAX: usize = 16;

/// All trees of a shard, youngest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeList<'a> {
    /// At most [`TREES_MAX`].
    pub trees: Vec<Tree<'a>>,
}

/// One tree, with the part of it that the query needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree<'a> {
    /// Level of the root, at most [`LEVEL_MAX`].
    pub level: u8,
    /// Number of records.
    pub entries: u64,
    /// The root.
    pub root: Subtree<'a>,
}

/// A node, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subtree<'a> {
    /// Some of its entries.
    Expanded(NodePart<'a>),
    /// Its hash only.
    Hash(Digest),
}

/// Some of the entries of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart<'a> {
    /// Number of entries in the node.
    pub count: u16,
    /// Revealed entries by ascending index.
    pub entries: Vec<(u16, Entry<'a>)>,
    /// List proof of the revealed entries.
    pub hashes: Vec<Digest>,
}

/// A revealed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// In a leaf.
    Record {
        /// The key.
        key: Cow<'a, [u8]>,
        /// The commit that wrote it.
        stamp: Stamp,
        /// What it says.
        body: RecordBody,
    },
    /// In an inner node.
    Child {
        /// The lowest key in the child.
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
    /// The bytes that stand in a shard part.
    ///
    /// # Panics
    /// If there are more than [`TREES_MAX`] trees, a key is longer than 65,535 bytes, or an entry is not of its node's level.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(&mut out);
        out.into_bytes()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// If the bytes are no list of trees.
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
            out.u64(tree.entries);
            tree.root.write(tree.level, out);
        }
    }

    pub(super) fn read(input: &mut Reader<'a>) -> Result<Self, Error> {
        let count = input.u8()?;
        if usize::from(count) > TREES_MAX {
            return Err(Error::Malformed("number of trees"));
        }
        let mut trees = Vec::new();
        for _ in 0..count {
            let level = input.u8()?;
            if level > LEVEL_MAX {
                return Err(Error::Malformed("level of a tree"));
            }
            trees.push(Tree { level, entries: input.u64()?, root: Subtree::read(level, input)? });
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
        out.u16(self.count);
        out.u16(u16::try_from(self.entries.len()).expect("a node has fewer than 2^16 entries"));
        for (index, entry) in &self.entries {
            out.u16(*index);
            match (level.checked_sub(1), entry) {
                (None, Entry::Record { key, stamp, body }) => write_record(out, key, *stamp, body),
                (Some(below), Entry::Child { separator, child }) => {
                    out.str16(separator);
                    child.write(below, out);
                }
                _ => panic!("leaves hold records, inner nodes hold children"),
            }
        }
        write_digests(out, &self.hashes);
    }

    fn read(level: u8, input: &mut Reader<'a>) -> Result<Self, Error> {
        let count = input.u16()?;
        let revealed = input.u16()?;
        // A proof of one key reveals one entry, or two. What more are claimed, the bytes have to show first.
        let mut entries = Vec::with_capacity(usize::from(revealed.min(2)));
        for _ in 0..revealed {
            let index = input.u16()?;
            let entry = match level.checked_sub(1) {
                None => read_record(input)?,
                Some(below) => {
                    Entry::Child { separator: Cow::Borrowed(input.str16()?), child: Subtree::read(below, input)? }
                }
            };
            entries.push((index, entry));
        }
        Ok(Self { count, entries, hashes: read_digests(input)? })
    }
}

fn write_record(out: &mut Writer, key: &[u8], stamp: Stamp, body: &RecordBody) {
    out.u8(match body {
        RecordBody::Put { .. } => 0,
        RecordBody::Tombstone => 1,
    });
    out.stamp(stamp);
    out.str16(key);
    if let RecordBody::Put { value_len, value_hash } = body {
        out.u32(*value_len);
        out.digest(value_hash);
    }
}

fn read_record<'a>(input: &mut Reader<'a>) -> Result<Entry<'a>, Error> {
    let tombstone = input.flag("record kind")?;
    let stamp = input.stamp()?;
    let key = Cow::Borrowed(input.str16()?);
    let body = if tombstone {
        RecordBody::Tombstone
    } else {
        RecordBody::Put { value_len: input.u32()?, value_hash: input.digest()? }
    };
    Ok(Entry::Record { key, stamp, body })
}
