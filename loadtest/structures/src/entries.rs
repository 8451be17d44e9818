//! Nodes of the B+-tree, the POS-tree and the buckets: a level, then entries in order.
//!
//! `node = u8 level || entries`; `record (level 0) = u16 key length || key || u32 payload length ||
//! payload`; `child = u16 length || lowest key of the child || hash of the child`. Integers are
//! little-endian.

use std::cmp::Ordering;

use coppice_types::Digest;

use crate::{
    Error, Result,
    store::{Nodes, Store},
    structure::{Change, Item, Link, Part},
};

/// The node size that these trees aim at; it is the engine's `node_bytes`.
pub const NODE_BYTES: usize = 4032;

/// The greatest height; no tree that fits into memory comes near.
const LEVEL_MAX: u8 = 32;

/// An owned entry: a record, or a child with its lowest key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, or the lowest key.
    pub key: Vec<u8>,
    /// The payload, or the child's hash.
    pub body: Vec<u8>,
}

impl Entry {
    #[must_use]
    pub fn child(key: Vec<u8>, name: &Digest) -> Self {
        Self { key, body: name.0.to_vec() }
    }

    /// The entry's length in a node, in bytes.
    #[must_use]
    pub fn bytes(&self, level: u8) -> usize {
        2 + self.key.len() + self.body.len() + if level == 0 { 4 } else { 0 }
    }

    /// Appends the entry's bytes.
    pub fn encode(&self, level: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.key);
        if level == 0 {
            out.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.body);
    }
}

/// Stores a node of entries.
pub fn put(store: &mut Store, level: u8, entries: &[Entry]) -> Digest {
    let mut node = Vec::with_capacity(1 + entries.iter().map(|entry| entry.bytes(level)).sum::<usize>());
    node.push(level);
    entries.iter().for_each(|entry| entry.encode(level, &mut node));
    store.put(node)
}

/// The level of a node; 0 for an empty byte string.
#[must_use]
pub fn level(node: &[u8]) -> u8 {
    node.first().copied().unwrap_or(0)
}

/// The entries of a node, in place.
#[derive(Clone, Debug)]
pub struct Entries<'n> {
    level: u8,
    rest: &'n [u8],
}

impl<'n> Entries<'n> {
    /// Starts reading a node.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn of(node: &'n [u8]) -> Result<Self> {
        match node.split_first() {
            Some((&level, rest)) if level <= LEVEL_MAX => Ok(Self { level, rest }),
            _ => Err(Error::Malformed("level")),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'n [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Error::Malformed("entry"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn entry(&mut self) -> Result<(&'n [u8], &'n [u8])> {
        let length = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let key_len = length(self.take(2)?);
        let key = self.take(key_len)?;
        let body_len = if self.level == 0 { length(self.take(4)?) } else { 32 };
        Ok((key, self.take(body_len)?))
    }
}

impl<'n> Iterator for Entries<'n> {
    type Item = Result<(&'n [u8], &'n [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.entry())
    }
}

/// The entries of a node, owned.
///
/// # Errors
/// `Malformed`.
pub fn read(node: &[u8]) -> Result<Vec<Entry>> {
    Entries::of(node)?.map(|entry| entry.map(|(key, body)| Entry { key: key.to_vec(), body: body.to_vec() })).collect()
}

/// The name of a child.
///
/// # Errors
/// `Malformed`.
pub fn name(body: &[u8]) -> Result<Digest> {
    Digest::from_slice(body).ok_or(Error::Malformed("name"))
}

/// The payload of a key in a leaf.
///
/// # Errors
/// `Malformed`.
pub fn find(leaf: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>> {
    for entry in Entries::of(leaf)? {
        let (at, payload) = entry?;
        match at.cmp(key) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(Some(payload.to_vec())),
            Ordering::Greater => break,
        }
    }
    Ok(None)
}

/// The child of an inner node that a key belongs to: the last one whose lowest key is not above the
/// key, or else the first.
///
/// # Errors
/// `Malformed`.
pub fn child_of(node: &[u8], key: &[u8]) -> Result<Digest> {
    let mut child = None;
    for entry in Entries::of(node)? {
        let (low, body) = entry?;
        if child.is_some() && low > key {
            break;
        }
        child = Some(body);
    }
    name(child.ok_or(Error::Malformed("an inner node without children"))?)
}

/// Looks up a key in a tree of such nodes.
///
/// # Errors
/// `Missing` or `Malformed` nodes.
pub fn get(nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut node = nodes.node(root)?;
    let mut above = LEVEL_MAX + 1;
    loop {
        let level = level(node);
        if level >= above {
            return Err(Error::Malformed("level"));
        }
        if level == 0 {
            return find(node, key);
        }
        above = level;
        node = nodes.node(&child_of(node, key)?)?;
    }
}

/// The items of a node, each with its key as its place.
///
/// # Errors
/// `Malformed`.
pub fn expand(node: &[u8]) -> Result<Vec<Item>> {
    let item = |entry: Result<(&[u8], &[u8])>| {
        let (key, body) = entry?;
        let part = match level(node) {
            0 => Part::Record { key: key.to_vec(), payload: body.to_vec() },
            _ => Part::Node(Link::Name(name(body)?)),
        };
        Ok(Item { place: key.to_vec(), part })
    };
    Entries::of(node)?.map(item).collect()
}

/// Merges changes into entries; both are in key order.
#[must_use]
pub fn merge(entries: Vec<Entry>, changes: &[Change]) -> Vec<Entry> {
    let mut merged = Vec::with_capacity(entries.len() + changes.len());
    let mut entries = entries.into_iter().peekable();
    for change in changes {
        while let Some(entry) = entries.next_if(|entry| entry.key < change.key) {
            merged.push(entry);
        }
        entries.next_if(|entry| entry.key == change.key);
        merged.extend(change.payload.clone().map(|body| Entry { key: change.key.clone(), body }));
    }
    merged.extend(entries);
    merged
}
