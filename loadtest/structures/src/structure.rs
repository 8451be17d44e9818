//! What a structure is, and what is the same for all of them: proofs, walks, differences, merges.
//!
//! A version is the hash of its root. Reads of a version need nothing else, and no version is ever changed.

use std::{cmp::Ordering, collections::BTreeSet};

use coppice_types::Digest;

use crate::{
    Result,
    store::{Nodes, Proof, Recorder, Store},
};

/// A write: what the key has from then on; none deletes it. A payload is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// Its payload.
    pub payload: Option<Vec<u8>>,
}

/// A key that two versions disagree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: Vec<u8>,
    /// What it has in the first one.
    pub before: Option<Vec<u8>>,
    /// What it has in the second one.
    pub after: Option<Vec<u8>>,
}

/// Where a node is: by name, or, if it is shorter than a hash and the structure says so, within its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// In the store.
    Name(Digest),
    /// Its bytes.
    Within(Vec<u8>),
}

/// A part of a version, as a walk in order meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Orders items: nothing below a node is before the node's own place, or behind the next item's.
    pub place: Vec<u8>,
    /// What is there.
    pub part: Part,
}

/// A node or a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Has others below it.
    Node(Link),
    /// A key with its payload.
    Record {
        /// The key.
        key: Vec<u8>,
        /// The payload.
        payload: Vec<u8>,
    },
}

/// A persistent authenticated map.
pub trait Structure {
    /// What it is called in reports.
    fn name(&self) -> &'static str;

    /// Whether equal content has an equal root, however it came about.
    fn is_canonical(&self) -> bool;

    /// The root of the version without records.
    fn empty(&self, store: &mut Store) -> Digest;

    /// The payload of a key.
    ///
    /// # Errors
    /// `Missing` or `Malformed` nodes.
    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Makes the next version: changes in ascending order of keys, each key once.
    ///
    /// # Errors
    /// As [`Structure::get`].
    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest>;

    /// What a node at a place has, in order of places.
    ///
    /// # Errors
    /// `Malformed`.
    fn expand(&self, place: &[u8], node: &[u8]) -> Result<Vec<Item>>;

    /// How far a node is from the records, if all of a level are equally far.
    fn level(&self, node: &[u8]) -> u8;
}

/// The nodes that show what a key has, or that it has nothing.
///
/// # Errors
/// As [`Structure::get`].
pub fn prove(structure: &dyn Structure, store: &Store, root: &Digest, key: &[u8]) -> Result<Proof> {
    let recorder = Recorder::new(store);
    structure.get(&recorder, root, key)?;
    Ok(recorder.into_proof())
}

/// What a proof says that a key has, to one who trusts the root.
///
/// # Errors
/// `Missing` or `Malformed` if it proves nothing.
pub fn verify(
    structure: &dyn Structure,
    hash: crate::store::Hash,
    root: &Digest,
    key: &[u8],
    proof: &Proof,
) -> Result<Option<Vec<u8>>> {
    structure.get(&Store::of_proof(hash, proof), root, key)
}

/// All nodes of a version by name, those of a former walk left out with all that is below them; `record` sees each record.
///
/// # Errors
/// As [`Structure::get`].
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

/// The keys that two versions disagree on, in order of keys. Nodes that both have at the same place are not read.
///
/// # Errors
/// As [`Structure::get`].
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
    /// The next item of each side is its last one.
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

    /// The first place is on one side alone.
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

/// What a merge came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The version with the changes of both sides; keys in conflict are as on the left.
    pub root: Digest,
    /// How many keys were taken from the right.
    pub taken: usize,
    /// Keys that the two sides changed in different ways, ascending.
    pub conflicts: Vec<Vec<u8>>,
}

/// Puts what `right` changed against `base` into `left`.
///
/// # Errors
/// As [`Structure::get`].
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
