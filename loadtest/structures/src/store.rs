//! Nodes by their hash: the storage of all structures except the engine's, and the content of their
//! proofs.
//!
//! A node is a byte string, and its name is its hash. Equal nodes are therefore one node, whichever
//! version or tree they belong to.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
};

use coppice_types::Digest;

use crate::{Error, Result};

/// The hash function that names nodes. The measurements use SHA-256 for all structures; Ethereum's
/// trie uses Keccak.
pub type Hash = fn(&[u8]) -> Digest;

/// Nodes that can be read by name.
pub trait Nodes {
    /// The node of this name.
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
    /// An empty store.
    #[must_use]
    pub fn new(hash: Hash) -> Self {
        Self { hash, nodes: HashMap::new() }
    }

    /// A store with the nodes of a proof. Each is named by the hash of its bytes, so a changed node
    /// has a different name.
    #[must_use]
    pub fn of_proof(hash: Hash, proof: &Proof) -> Self {
        Self { hash, nodes: proof.nodes.iter().map(|node| (hash(node), node.clone().into())).collect() }
    }

    /// Stores a node, and returns its name.
    pub fn put(&mut self, node: Vec<u8>) -> Digest {
        let name = (self.hash)(&node);
        self.nodes.entry(name).or_insert_with(|| node.into());
        name
    }

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

/// The nodes that a lookup reads, each once. With them and a trusted root, anyone can repeat the
/// lookup, and gets the payload or its absence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// From the root down.
    pub nodes: Vec<Vec<u8>>,
}

impl Proof {
    /// The length of the encoding: each node after its length in four bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.iter().map(|node| node.len() + 4).sum()
    }
}

/// A wrapper that records which nodes are read, to make a proof of them.
#[derive(Debug)]
pub struct Recorder<'s> {
    store: &'s Store,
    seen: RefCell<(BTreeSet<Digest>, Proof)>,
}

impl<'s> Recorder<'s> {
    #[must_use]
    pub fn new(store: &'s Store) -> Self {
        Self { store, seen: RefCell::default() }
    }

    /// The nodes that were read.
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
