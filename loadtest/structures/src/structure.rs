//! The interface of a structure, and the code that all structures share: proofs, walks,
//! differences, merges.
//!
//! A version is the hash of its root. Reads of a version need nothing else, and no version is ever
//! changed.

use std::{cmp::Ordering, collections::BTreeSet};

use coppice_types::Digest;

use crate::{
    Result,
    store::{Nodes, Proof, Recorder, Store},
};

/// A write: the key's new payload; `None` deletes the key. A payload is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Vec<u8>,
    pub payload: Option<Vec<u8>>,
}

/// A key that differs between two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: Vec<u8>,
    /// The payload in the first version.
    pub before: Option<Vec<u8>>,
    /// The payload in the second version.
    pub after: Option<Vec<u8>>,
}

/// The location of a node. Some structures store a node that is shorter than a hash within its
/// parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// The node's name in the store.
    Name(Digest),
    /// The node's bytes.
    Within(Vec<u8>),
}

/// A part of a version, as an ordered walk meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The order of items: everything below a node lies between the node's own place and the next
    /// item's.
    pub place: Vec<u8>,
    pub part: Part,
}

/// A node or a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A node, with others below it.
    Node(Link),
    Record {
        key: Vec<u8>,
        payload: Vec<u8>,
    },
}

/// A persistent authenticated map.
pub trait Structure {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Whether equal contents have equal roots, whatever their history.
    fn is_canonical(&self) -> bool;

    /// The root of the version without records.
    fn empty(&self, store: &mut Store) -> Digest;

    /// The payload of a key.
    ///
    /// # Errors
    /// `Missing` or `Malformed` nodes.
    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Makes the next version. Changes are in ascending order of keys, each key once.
    ///
    /// # Errors
    /// Like [`Structure::get`].
    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest>;

    /// The items of a node at this place, in order of places.
    ///
    /// # Errors
    /// `Malformed`.
    fn expand(&self, place: &[u8], node: &[u8]) -> Result<Vec<Item>>;

    /// The node's distance from the records. 0 if the structure does not keep its nodes in levels.
    fn level(&self, node: &[u8]) -> u8;
}

/// The nodes that prove a key's payload or its absence.
///
/// # Errors
/// Like [`Structure::get`].
pub fn prove(structure: &dyn Structure, store: &Store, root: &Digest, key: &[u8]) -> Result<Proof> {
    let recorder = Recorder::new(store);
    structure.get(&recorder, root, key)?;
    Ok(recorder.into_proof())
}

/// The payload of a key according to a proof, for a trusted root.
///
/// # Errors
/// `Missing` or `Malformed` if the proof is invalid.
pub fn verify(
    structure: &dyn Structure,
    hash: crate::store::Hash,
    root: &Digest,
    key: &[u8],
    proof: &Proof,
) -> Result<Option<Vec<u8>>> {
    structure.get(&Store::of_proof(hash, proof), root, key)
}

/// Visits all nodes of a version by name, except those of an earlier walk and everything below
/// them. `record` sees each record.
///
/// # Errors
/// Like [`Structure::get`].
pub fn walk(
    structure: &dyn Structure,
    nodes: &dyn Nodes,
    root: &Digest,
    seen: &mut BTreeSet<Digest>,
    record: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    let mut open = root_item(root);
    while let Some(Item { place, part }) = open.pop() {
        match part {
            Part::Record { key, payload } => record(&key, &payload),
            Part::Node(Link::Name(name)) if !seen.insert(name) => {}
            Part::Node(link) => open.extend(expand(structure, nodes, &place, &link)?.into_iter().rev()),
        }
    }
    Ok(())
}

fn root_item(root: &Digest) -> Vec<Item> {
    vec![Item { place: Vec::new(), part: Part::Node(Link::Name(*root)) }]
}

fn bytes<'a>(nodes: &'a dyn Nodes, link: &'a Link) -> Result<&'a [u8]> {
    match link {
        Link::Name(name) => nodes.node(name),
        Link::Within(bytes) => Ok(bytes),
    }
}

fn expand(structure: &dyn Structure, nodes: &dyn Nodes, place: &[u8], link: &Link) -> Result<Vec<Item>> {
    structure.expand(place, bytes(nodes, link)?)
}

/// The keys that differ between two versions, in key order. Nodes that both have at the same place
/// are not read.
///
/// # Errors
/// Like [`Structure::get`].
pub fn diff(structure: &dyn Structure, nodes: &dyn Nodes, from: &Digest, to: &Digest) -> Result<Vec<Difference>> {
    let mut compare = Compare { structure, nodes, found: Vec::new() };
    compare.run(root_item(from), root_item(to))?;
    compare.found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(compare.found)
}

#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

struct Compare<'c> {
    structure: &'c dyn Structure,
    nodes: &'c dyn Nodes,
    found: Vec<Difference>,
}

impl Compare<'_> {
    /// The items are in reverse order: the next one is the last.
    fn run(&mut self, mut before: Vec<Item>, mut after: Vec<Item>) -> Result<()> {
        loop {
            let order = match (before.last(), after.last()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.place.cmp(&b.place),
            };
            match order {
                Ordering::Less => self.advance(&mut before, Side::Before)?,
                Ordering::Greater => self.advance(&mut after, Side::After)?,
                Ordering::Equal => self.both(&mut before, &mut after)?,
            }
        }
    }

    /// Takes one item of one side: expands a node into its items, or reports a record as different.
    fn advance(&mut self, items: &mut Vec<Item>, side: Side) -> Result<()> {
        let Some(Item { place, part }) = items.pop() else { return Ok(()) };
        match (part, side) {
            (Part::Node(link), _) => {
                items.extend(expand(self.structure, self.nodes, &place, &link)?.into_iter().rev());
            }
            (Part::Record { key, payload }, Side::Before) => {
                self.found.push(Difference { key, before: Some(payload), after: None });
            }
            (Part::Record { key, payload }, Side::After) => {
                self.found.push(Difference { key, before: None, after: Some(payload) });
            }
        }
        Ok(())
    }

    fn both(&mut self, before: &mut Vec<Item>, after: &mut Vec<Item>) -> Result<()> {
        let (Some(a), Some(b)) = (before.last(), after.last()) else { return Ok(()) };
        match (&a.part, &b.part) {
            (a, b) if a == b => {
                before.pop();
                after.pop();
            }
            (Part::Node(a), Part::Node(b)) => {
                let level = |link| Ok(self.structure.level(bytes(self.nodes, link)?));
                let (a, b): (u8, u8) = (level(a)?, level(b)?);
                if a >= b {
                    self.advance(before, Side::Before)?;
                }
                if b >= a {
                    self.advance(after, Side::After)?;
                }
            }
            (Part::Node(_), Part::Record { .. }) => self.advance(before, Side::Before)?,
            (Part::Record { .. }, Part::Node(_)) => self.advance(after, Side::After)?,
            (Part::Record { .. }, Part::Record { .. }) => {
                if let (Some(Item { part: Part::Record { key, payload: was }, .. }), Some(Item { part, .. })) =
                    (before.pop(), after.pop())
                    && let Part::Record { payload: is, .. } = part
                {
                    self.found.push(Difference { key, before: Some(was), after: Some(is) });
                }
            }
        }
        Ok(())
    }
}

/// The outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The version with the changes of both sides; keys in conflict have the left side's payload.
    pub root: Digest,
    /// The number of keys taken from the right.
    pub taken: usize,
    /// Keys that the two sides changed differently, ascending.
    pub conflicts: Vec<Vec<u8>>,
}

/// Applies the changes from `base` to `right` to `left`.
///
/// # Errors
/// Like [`Structure::get`].
pub fn merge(
    structure: &dyn Structure,
    store: &mut Store,
    base: &Digest,
    left: &Digest,
    right: &Digest,
) -> Result<Merged> {
    let ours = diff(structure, store, base, left)?;
    let theirs = diff(structure, store, base, right)?;
    let mut ours = ours.into_iter().peekable();
    let (mut changes, mut conflicts) = (Vec::new(), Vec::new());
    for Difference { key, after, .. } in theirs {
        while ours.next_if(|our| our.key < key).is_some() {}
        match ours.next_if(|our| our.key == key) {
            None => changes.push(Change { key, payload: after }),
            Some(our) if our.after == after => {}
            Some(_) => conflicts.push(key),
        }
    }
    let root = structure.apply(store, left, &changes)?;
    Ok(Merged { root, taken: changes.len(), conflicts })
}
