//! Nodes by their hash: what all structures but the engine's are kept in, and what their proofs are made of.
//!
//! A node is a byte string, its name is its hash, so equal nodes are one node whichever version, or whose tree, they are in.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
};

use coppice_types::Digest;

use crate::{Error, Result};

/// How nodes are named. The measurements take SHA-256 for all structures; Ethereum's trie has Keccak.
pub type Hash = fn(&[u8]) -> Digest;

/// Nodes that can be read by their name.
pub trait Nodes {
    /// The node of a hash.
    ///
    /// # Errors
    /// `Missing`.
    fn node(&self, name: &Digest) -> Result<&[u8]>;
}

/// All nodes of all versions, in memory.
#[derive(Debug)]
pub struct Store {
    hash: Hash,
    nodes: HashMap<Digest, Box<[u8]>>,
}

impl Store {
    /// A store without nodes.
    #[must_use]
    pub fn new(hash: Hash) -> Self {
        Self { hash, nodes: HashMap::new() }
    }

    /// What a proof brings: each node under the hash of the bytes that came, so that a changed one has another name.
    #[must_use]
    pub fn of_proof(hash: Hash, proof: &Proof) -> Self {
        Self { hash, nodes: proof.nodes.iter().map(|node| (hash(node), node.clone().into())).collect() }
    }

    /// Keeps a node, and says its name.
    pub fn put(&mut self, node: Vec<u8>) -> Digest {
        let name = (self.hash)(&node);
        self.nodes.entry(name).or_insert_with(|| node.into());
        name
    }

    /// How nodes are named.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }
}

impl Nodes for Store {
    fn node(&self, name: &Digest) -> Result<&[u8]> {
        self.nodes.get(name).map(|node| &**node).ok_or(Error::Missing(*name))
    }
}

/// The nodes that a lookup reads, each once: with them alone, whoever trusts the root can do the lookup again, and finds
/// what is there, or that nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// From the root down.
    pub nodes: Vec<Vec<u8>>,
}

impl Proof {
    /// Size on a wire: each node behind its length in four bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.iter().map(|node| node.len() + 4).sum()
    }
}

/// Remembers what is read, to make a proof of it.
#[derive(Debug)]
pub struct Recorder<'s> {
    store: &'s Store,
    seen: RefCell<(BTreeSet<Digest>, Proof)>,
}

impl<'s> Recorder<'s> {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(store: &'s Store) -> Self {
        Self { store, seen: RefCell::default() }
    }

    /// What was read.
    #[must_use]
    pub fn into_proof(self) -> Proof {
        self.seen.into_inner().1
    }
}

impl Nodes for Recorder<'_> {
    fn node(&self, name: &Digest) -> Result<&[u8]> {
        let node = self.store.node(name)?;
        let (names, proof) = &mut *self.seen.borrow_mut();
        if names.insert(*name) {
            proof.nodes.push(node.to_vec());
        }
        Ok(node)
    }
}
