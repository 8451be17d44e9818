//! One interface for all subjects: the engine, and the structures over a store of nodes.
//!
//! In all of them, values longer than [`INLINE_BYTES`] are stored outside of the nodes, which hold
//! their hashes. That is the engine's rule; without it, a document of 100 KB would be copied
//! whenever a neighbour changes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use coppice_engine::{Engine, MergeName, MergeProgress, Options, PrepareId, ShardState, StageRequest, View};
use coppice_env::DiskStorage;
use coppice_types::{Change as EngineChange, Digest, Operation, Params, ShardId, Stamp, Term, Version};
use coppice_verify::{
    check::{Answer, verify_trees},
    hash::sha256,
    proof::{Query, TreeList},
};
use tempfile::TempDir;

use crate::{
    store::{Nodes, Proof, Store},
    structure::{Change, Structure, diff, merge, prove, verify, walk},
};

/// The longest value within a node: the engine's default.
pub const INLINE_BYTES: usize = 128;
/// Records that one step of the engine's merging takes.
const MERGE_STEP: usize = 512;
/// Keys that one part of the engine's merge of versions looks at.
const PAGE_KEYS: usize = 1024;

/// A write; `None` as the value deletes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// The size of a set of versions: the sum over the versions of what each reaches, and the size if
/// shared parts count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Nodes, each counted once.
    pub nodes: u64,
    /// Bytes of nodes and of values outside of them, each counted once.
    pub bytes: u64,
    /// The sum of the nodes of all versions.
    pub nodes_summed: u64,
    /// The sum of the bytes of all versions.
    pub bytes_summed: u64,
}

impl Footprint {
    /// The share of bytes that sharing saves.
    #[must_use]
    pub fn deduplication(&self) -> f64 {
        1.0 - self.bytes as f64 / self.bytes_summed as f64
    }

    /// The share of nodes that sharing saves.
    #[must_use]
    pub fn node_sharing(&self) -> f64 {
        1.0 - self.nodes as f64 / self.nodes_summed as f64
    }
}

/// Bytes of nodes, and of values outside of them, by name.
#[derive(Debug, Default)]
struct Reached<Name> {
    nodes: BTreeMap<Name, u64>,
    values: BTreeMap<Name, u64>,
}

/// Counts versions one by one.
fn footprint<Name: Ord>(versions: impl Iterator<Item = Result<Reached<Name>>>) -> Result<Footprint> {
    let mut all = Reached { nodes: BTreeMap::new(), values: BTreeMap::new() };
    let mut sums = Footprint::default();
    let sum = |map: &BTreeMap<Name, u64>| map.values().sum::<u64>();
    for reached in versions {
        let reached = reached?;
        sums.nodes_summed += reached.nodes.len() as u64;
        sums.bytes_summed += sum(&reached.nodes) + sum(&reached.values);
        all.nodes.extend(reached.nodes);
        all.values.extend(reached.values);
    }
    Ok(Footprint { nodes: all.nodes.len() as u64, bytes: sum(&all.nodes) + sum(&all.values), ..sums })
}

/// The outcome of a merge of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeCount {
    /// Keys taken from the right.
    pub taken: usize,
    /// Keys that both sides changed differently.
    pub conflicts: usize,
}

/// A store of versions. They are numbered from 0, the empty one.
pub trait Subject {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Makes the next version of the main line. Writes ascend by key, each key once.
    ///
    /// # Errors
    /// If the subject fails.
    fn commit(&mut self, writes: &[Write]) -> Result<()>;

    /// Makes a version on a branch of the newest one, and returns its number.
    ///
    /// # Errors
    /// If the subject fails.
    fn branch(&mut self, writes: &[Write]) -> Result<usize>;

    /// The newest version of the main line.
    fn newest(&self) -> usize;

    /// The value of a key.
    ///
    /// # Errors
    /// If the subject fails.
    fn get(&self, version: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The number of keys that differ between two versions; their values on both sides are read.
    ///
    /// # Errors
    /// If the subject fails.
    fn diff(&self, from: usize, to: usize) -> Result<usize>;

    /// Makes the version with the changes of both sides.
    ///
    /// # Errors
    /// If the subject fails.
    fn merge(&mut self, base: usize, left: usize, right: usize) -> Result<MergeCount>;

    /// Proves a key's value or its absence.
    ///
    /// # Errors
    /// If the subject fails.
    fn prove(&self, version: usize, key: &[u8]) -> Result<Vec<u8>>;

    /// Whether the proof shows a value of the key. Only the version's root is trusted.
    ///
    /// # Errors
    /// If the proof is invalid.
    fn verify(&self, version: usize, key: &[u8], proof: &[u8]) -> Result<bool>;

    /// The size of a set of versions.
    ///
    /// # Errors
    /// If the subject fails.
    fn footprint(&self, versions: &[usize]) -> Result<Footprint>;
}

/// A structure over a store of nodes.
pub struct Hashed {
    structure: Box<dyn Structure>,
    store: Store,
    values: HashMap<Digest, Box<[u8]>>,
    roots: Vec<Digest>,
    newest: usize,
}

impl Hashed {
    /// A subject with the empty version 0.
    #[must_use]
    pub fn new(structure: Box<dyn Structure>) -> Self {
        let mut store = Store::new(sha256);
        let roots = vec![structure.empty(&mut store)];
        Self { structure, store, values: HashMap::new(), roots, newest: 0 }
    }

    /// Starts again from the empty version in the same store, for another party with its own
    /// history.
    pub fn start_over(&mut self) {
        self.newest = 0;
    }

    /// The payload that nodes hold for a value.
    fn payload(&mut self, value: &[u8]) -> Vec<u8> {
        if value.len() <= INLINE_BYTES {
            return [&[0], value].concat();
        }
        let hash = sha256(value);
        self.values.entry(hash).or_insert_with(|| value.into());
        [&[1][..], &(value.len() as u32).to_le_bytes(), &hash.0].concat()
    }

    fn value(&self, payload: &[u8]) -> Result<Vec<u8>> {
        match payload {
            [0, value @ ..] => Ok(value.to_vec()),
            [1, _, _, _, _, hash @ ..] => {
                let hash = Digest::from_slice(hash).context("a hash")?;
                Ok(self.values.get(&hash).context("a value")?.to_vec())
            }
            _ => bail!("a payload"),
        }
    }

    fn put(&mut self, writes: &[Write]) -> Result<usize> {
        let mut changes = Vec::with_capacity(writes.len());
        for Write { key, value } in writes {
            let payload = value.as_deref().map(|value| self.payload(value));
            changes.push(Change { key: key.clone(), payload });
        }
        let root = self.structure.apply(&mut self.store, &self.roots[self.newest], &changes)?;
        self.roots.push(root);
        Ok(self.roots.len() - 1)
    }

    fn reached(&self, version: usize) -> Result<Reached<Digest>> {
        let (mut names, mut values) = (BTreeSet::new(), BTreeMap::new());
        let mut record = |_: &[u8], payload: &[u8]| {
            if let [1, len @ ..] = payload
                && let (Some(len), Some(hash)) = (len.first_chunk(), len.get(4..).and_then(Digest::from_slice))
            {
                values.insert(hash, u64::from(u32::from_le_bytes(*len)));
            }
        };
        walk(&*self.structure, &self.store, &self.roots[version], &mut names, &mut record)?;
        let size = |name: Digest| Ok((name, self.store.node(&name)?.len() as u64));
        let nodes = names.into_iter().map(size).collect::<Result<_>>()?;
        Ok(Reached { nodes, values })
    }
}

impl Subject for Hashed {
    fn name(&self) -> &'static str {
        self.structure.name()
    }

    fn commit(&mut self, writes: &[Write]) -> Result<()> {
        self.newest = self.put(writes)?;
        Ok(())
    }

    fn branch(&mut self, writes: &[Write]) -> Result<usize> {
        self.put(writes)
    }

    fn newest(&self) -> usize {
        self.newest
    }

    fn get(&self, version: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let payload = self.structure.get(&self.store, &self.roots[version], key)?;
        payload.map(|payload| self.value(&payload)).transpose()
    }

    fn diff(&self, from: usize, to: usize) -> Result<usize> {
        let differences = diff(&*self.structure, &self.store, &self.roots[from], &self.roots[to])?;
        for payload in differences.iter().flat_map(|difference| [&difference.before, &difference.after]).flatten() {
            self.value(payload)?;
        }
        Ok(differences.len())
    }

    fn merge(&mut self, base: usize, left: usize, right: usize) -> Result<MergeCount> {
        let [base, left, right] = [base, left, right].map(|version| self.roots[version]);
        let merged = merge(&*self.structure, &mut self.store, &base, &left, &right)?;
        self.roots.push(merged.root);
        Ok(MergeCount { taken: merged.taken, conflicts: merged.conflicts.len() })
    }

    fn prove(&self, version: usize, key: &[u8]) -> Result<Vec<u8>> {
        let proof = prove(&*self.structure, &self.store, &self.roots[version], key)?;
        let mut bytes = Vec::with_capacity(proof.bytes());
        for node in &proof.nodes {
            bytes.extend_from_slice(&(node.len() as u32).to_le_bytes());
            bytes.extend_from_slice(node);
        }
        Ok(bytes)
    }

    fn verify(&self, version: usize, key: &[u8], mut proof: &[u8]) -> Result<bool> {
        let mut nodes = Vec::new();
        while let Some((len, rest)) = proof.split_first_chunk() {
            let (node, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).context("a node")?;
            nodes.push(node.to_vec());
            proof = rest;
        }
        ensure!(proof.is_empty(), "bytes after the proof");
        Ok(verify(&*self.structure, sha256, &self.roots[version], key, &Proof { nodes })?.is_some())
    }

    fn footprint(&self, versions: &[usize]) -> Result<Footprint> {
        footprint(versions.iter().map(|version| self.reached(*version)))
    }
}

/// The engine, in a temporary directory. Nothing is flushed: everything is in memory, as for the
/// other subjects.
pub struct Tpbf {
    engine: Engine,
    states: Vec<(ShardState, Stamp)>,
    newest: usize,
    attempts: u64,
    _dir: TempDir,
}

impl Tpbf {
    /// A subject with the empty version 0 and the default parameters of a ledger.
    ///
    /// # Errors
    /// If there is no place for temporary files.
    pub fn new() -> Result<Self> {
        let dir = TempDir::new()?;
        let storage = Arc::new(DiskStorage::new(dir.path()));
        let params = Params::default();
        ensure!(params.inline_bytes as usize == INLINE_BYTES, "the engine keeps other values in its nodes");
        // Everything that is written stays in memory, as in the other subjects.
        let cache = 1 << 30;
        let options = Options { young_cache_bytes: cache, old_cache_bytes: cache, ..Options::default() };
        let engine = Engine::create(storage, ShardId(0), params, options)?;
        let states = vec![(engine.decided(), Stamp::default())];
        Ok(Self { engine, states, newest: 0, attempts: 0, _dir: dir })
    }

    fn view(&self, version: usize) -> Result<View<'_>> {
        Ok(self.engine.view(&self.states[version].0)?)
    }

    fn stage(&mut self, base: usize, merges: &[MergeName], operations: &[Operation]) -> Result<usize> {
        let (base, stamp) = self.states[base];
        self.attempts += 1;
        let stamp = Stamp { version: Version(stamp.version.0 + 1), ..stamp };
        let prepare_id = PrepareId { term: Term(1), attempt: self.attempts };
        let request = StageRequest { stamp, prepare_id, base, merges, operations, erases: &[] };
        let staged = self.engine.stage(&request)?;
        self.states.push((staged.state, stamp));
        Ok(self.states.len() - 1)
    }

    /// Merges trees as a replica does: ten records for each written one, and to the end if there
    /// are too many trees.
    fn merge_trees(&mut self, written: usize) -> Result<()> {
        let mut steps = written * 10 / MERGE_STEP + 1;
        loop {
            let trees = self.engine.shape(&self.engine.decided())?.entries.len();
            let crowded = trees >= usize::from(self.engine.params().tree_limit);
            if (steps == 0 && !crowded) || self.engine.merge_step(MERGE_STEP)? != MergeProgress::Working {
                return Ok(());
            }
            steps = steps.saturating_sub(1);
        }
    }
}

fn operation(write: &Write) -> Operation {
    let change = match &write.value {
        Some(value) => EngineChange::Put(value.clone()),
        None => EngineChange::Delete,
    };
    Operation { key: write.key.clone(), change }
}

impl Subject for Tpbf {
    fn name(&self) -> &'static str {
        "TPBF (the engine)"
    }

    fn commit(&mut self, writes: &[Write]) -> Result<()> {
        let operations: Vec<Operation> = writes.iter().map(operation).collect();
        let merges: Vec<MergeName> = self.engine.built_merges().into_iter().take(1).collect();
        self.newest = self.stage(self.newest, &merges, &operations)?;
        self.engine.settle(&self.states[self.newest].0)?;
        self.merge_trees(writes.len())
    }

    fn branch(&mut self, writes: &[Write]) -> Result<usize> {
        let operations: Vec<Operation> = writes.iter().map(operation).collect();
        self.stage(self.newest, &[], &operations)
    }

    fn newest(&self) -> usize {
        self.newest
    }

    fn get(&self, version: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.view(version)?.get(key, true)?.and_then(|record| record.value))
    }

    fn diff(&self, from: usize, to: usize) -> Result<usize> {
        Ok(self.view(to)?.diff(&self.view(from)?, &[], None)?.len())
    }

    fn merge(&mut self, base: usize, left: usize, right: usize) -> Result<MergeCount> {
        let (mut operations, mut conflicts) = (Vec::new(), 0);
        let mut low = Some(Vec::new());
        while let Some(from) = low {
            let page = self.view(left)?.merge(&self.view(base)?, &self.view(right)?, &from, None, PAGE_KEYS)?;
            conflicts += page.conflicts.len();
            operations.extend(page.taken);
            low = page.next;
        }
        self.stage(left, &[], &operations)?;
        Ok(MergeCount { taken: operations.len(), conflicts })
    }

    fn prove(&self, version: usize, key: &[u8]) -> Result<Vec<u8>> {
        Ok(self.view(version)?.prove_keys(&[key])?)
    }

    fn verify(&self, version: usize, key: &[u8], proof: &[u8]) -> Result<bool> {
        let (state, stamp) = &self.states[version];
        let list = TreeList::decode(proof).context("a list of trees")?;
        match verify_trees(list, &state.digest, *stamp, &Query::Keys(vec![Cow::Borrowed(key)])) {
            Ok(Answer::Keys(answers)) => Ok(answers.iter().all(|(_, record)| record.is_some())),
            Ok(Answer::Range { .. }) => bail!("an answer to another question"),
            Err(failure) => bail!("{failure}"),
        }
    }

    fn footprint(&self, versions: &[usize]) -> Result<Footprint> {
        footprint(versions.iter().map(|version| {
            let footprint = self.view(*version)?.footprint()?;
            Ok(Reached { nodes: footprint.spans, values: footprint.values })
        }))
    }
}
