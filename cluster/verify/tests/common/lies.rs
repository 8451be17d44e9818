//! Ledgers that lie: their key signs states that no honest ledger has. Each lie is well formed
//! except for one rule.

use std::borrow::Cow;

use coppice_types::{Digest, Params, ShardId, Stamp, Version, codec::Writer};
use coppice_verify::{
    checkpoint::Checkpoint,
    epochs::{Epochs, Pair},
    hash::{self, RecordBody, file_checksum},
    header::{Body, Header},
    merkle,
    note::SignerKey,
    proof::{
        Entry, EpochPart, HeaderPart, LogPart, NodePart, Proof, ProofFile, Query, QueryProof, ShardPart, StandingProof,
        Subtree, Tree, TreeList,
    },
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

use super::{
    cluster,
    liar::{Liar, Told},
    params, put,
};

/// The bytes of a proof file with a fitting checksum, whatever was changed in it.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 8;
    let checksum = file_checksum(&bytes[..at]).to_le_bytes();
    bytes[at..].copy_from_slice(&checksum);
    bytes
}

pub fn encode(file: &ProofFile<'_>) -> Vec<u8> {
    file.encode().expect("it fits")
}

/// A ledger of one shard, or of two that meet at `m`, before its first commit.
pub fn ledger(splits: &[&[u8]]) -> Ledger {
    let splits: Vec<Vec<u8>> = splits.iter().map(|split| split.to_vec()).collect();
    let map = ShardMap::from_splits(&splits).expect("the splits ascend");
    Ledger::new("ledger.example", cluster(), &[7; 32], &params(), map)
}

/// [`ledger`] of one shard with one record, at version 1.
pub fn with_a_record() -> Ledger {
    let mut ledger = ledger(&[]);
    ledger.commit(&[Commit { operations: vec![put(b"k", b"v")], ..Commit::default() }]).expect("a batch");
    ledger
}

pub fn record(key: &[u8]) -> Entry<'static> {
    Entry::Record { key: Cow::Owned(key.to_vec()), stamp: Stamp::new(0, 1), body: RecordBody::put(b"v") }
}

/// A tree of one leaf that shows all of its records.
pub fn leaf(entries: u64, keys: &[&[u8]]) -> Tree<'static> {
    let shown = keys.iter().zip(0..).map(|(key, index)| (index, record(key))).collect();
    let node = NodePart { count: keys.len() as u16, entries: shown, hashes: Vec::new() };
    Tree { level: 0, entries, root: Subtree::Expanded(node) }
}

pub fn no_records(entries: u64) -> Tree<'static> {
    Tree { level: 0, entries, root: Subtree::Hash(hash::empty_root_hash()) }
}

/// The hash of a node that is shown whole.
fn node_hash(level: u8, subtree: &Subtree<'_>) -> Digest {
    let Subtree::Expanded(node) = subtree else {
        let Subtree::Hash(hash) = subtree else { unreachable!("a subtree is expanded or a hash") };
        return *hash;
    };
    let entry = |(_, entry): &(u16, Entry<'_>)| match entry {
        Entry::Record { key, stamp, body } => hash::record_hash(key, *stamp, body),
        Entry::Child { separator, child } => hash::entry_hash(separator, &node_hash(level - 1, child)),
    };
    let entries: Vec<Digest> = node.entries.iter().map(entry).collect();
    if level == 0 { hash::leaf_node_hash(&entries) } else { hash::inner_node_hash(level, &entries) }
}

pub fn shard(index: u32, low: &[u8], high: Option<&[u8]>, trees: Vec<Tree<'static>>) -> ShardPart<'static> {
    ShardPart {
        index,
        shard: ShardId(index),
        low: Cow::Owned(low.to_vec()),
        high: high.map(|high| Cow::Owned(high.to_vec())),
        version: Version(1),
        trees: TreeList { trees },
    }
}

fn leaf_of(part: &ShardPart<'_>) -> Digest {
    let digest = |tree: &Tree<'_>| hash::tree_digest(tree.level, tree.entries, &node_hash(tree.level, &tree.root));
    let digests: Vec<Digest> = part.trees.trees.iter().map(digest).collect();
    hash::state_leaf_hash(part.shard, &part.low, part.high.as_deref(), part.version, &hash::shard_digest(&digests))
}

/// A query for keys, over shards that are the whole state of version 1.
pub fn state_of(shards: Vec<ShardPart<'static>>, keys: &[&[u8]]) -> ProofFile<'static> {
    let mut ledger = ledger(&[]);
    let leaves: Vec<Digest> = shards.iter().map(leaf_of).collect();
    let mut header = ledger.next_header(Stamp::new(0, 1), merkle::mth(&leaves), &[], Body::Commit);
    header.state_leaves = leaves.len() as u32;
    ledger.append(header.clone());
    let query = Query::Keys(keys.iter().map(|key| Cow::Owned(key.to_vec())).collect());
    let epoch = ledger.epoch_part(Stamp::new(0, 1), 2);
    of_version(&ledger, &header, epoch, query, shards)
}

/// A query about the state of a version, all of whose shards are shown.
pub fn of_version(
    ledger: &Ledger,
    header: &Header,
    epoch: EpochPart,
    query: Query<'static>,
    shards: Vec<ShardPart<'static>>,
) -> ProofFile<'static> {
    let size = ledger.headers.len() as u64;
    let entries: Vec<Digest> = ledger.headers.iter().map(Header::hash).collect();
    let path = merkle::inclusion_path(&entries, header.sequence.0);
    let proof = QueryProof {
        log: ledger.log_part(size),
        header: HeaderPart { header: Cow::Owned(header.encode()), path },
        epoch,
        query,
        shards,
        state_hashes: Vec::new(),
        values: None,
    };
    ProofFile { cluster: ledger.cluster, proof: Proof::Query(proof) }
}

/// An honest proof, under a newest header that lies.
pub fn under(change: impl FnOnce(&Ledger) -> Header) -> ProofFile<'static> {
    let mut ledger = with_a_record();
    let header = change(&ledger);
    ledger.append(header);
    ledger.prove_keys(Stamp::new(0, 1), &[b"k"], true)
}

/// A receipt of version 1 under a newest header with this stamp and these pairs of epoch and base.
/// Pair `index` is shown, and with `next` the one after it.
pub fn pairs(stamp: Stamp, pairs: &[(u64, u64)], index: u32, next: bool) -> ProofFile<'static> {
    let mut ledger = with_a_record();
    let pair = |&(epoch, base): &(u64, u64)| Pair { epoch: Stamp::new(epoch, 0).epoch, base: Version(base) };
    let pairs: Vec<Pair> = pairs.iter().map(pair).collect();
    let hashes: Vec<Digest> = pairs.iter().map(Pair::hash).collect();
    let body = Body::Other { kind: 4, bytes: Vec::new() };
    let mut header = ledger.next_header(stamp, ledger.newest().state_root, &[], body);
    (header.epochs_root, header.epoch_pairs) = (merkle::mth(&hashes), pairs.len() as u32);
    let mut file = ledger.receipt(Stamp::new(0, 1), 0);
    ledger.append(header);
    let next = next.then_some(index + 1);
    let indices: Vec<u64> = [Some(index), next].into_iter().flatten().map(u64::from).collect();
    let size = ledger.headers.len() as u64;
    if let Proof::Receipt(proof) = &mut file.proof {
        proof.log = ledger.log_part(size);
        proof.header = ledger.header_part(Stamp::new(0, 1), size);
        proof.epoch = EpochPart {
            index,
            pair: pairs[index as usize],
            next: next.map(|next| pairs[next as usize]),
            hashes: merkle::list_proof(&hashes, &indices),
        };
    }
    file
}

/// A log of one entry, which is signed.
pub fn log_of(genesis: Vec<u8>, key: &SignerKey) -> ProofFile<'static> {
    let root = hash::log_entry_hash(&genesis);
    let checkpoint = Checkpoint { origin: key.name().to_owned(), size: 1, root };
    let note = checkpoint.sign(key).expect("the key's origin").into_bytes();
    let log = LogPart {
        checkpoint: Cow::Owned(note),
        newest_header: Cow::Owned(genesis),
        path: Vec::new(),
        key_changes: Vec::new(),
    };
    let pairs = Epochs::new().pairs().to_vec();
    let proof = StandingProof { log, old_size: 1, old_root: root, path: Vec::new(), pairs };
    ProofFile { cluster: cluster(), proof: Proof::Standing(proof) }
}

/// A genesis header that gives a shard the id that no shard has.
pub fn genesis_with_shard_none() -> ProofFile<'static> {
    let ledger = ledger(&[]);
    let (honest, map) = (ledger.headers[0].encode(), ledger.shard_map.encode());
    let at = honest.windows(map.len()).position(|part| part == map).expect("genesis carries the map");
    let mut other = map.clone();
    other[5..9].fill(0xff);
    let leaf = &ledger.shard_map.genesis_leaves()[0];
    let none = hash::state_leaf_hash(ShardId(u32::MAX), &leaf.low, None, Version(0), &leaf.digest);
    let mut bytes = honest;
    bytes[at..at + map.len()].copy_from_slice(&other);
    bytes[50..82].copy_from_slice(none.as_bytes());
    bytes[86..118].copy_from_slice(hash::shard_map_hash(&other).as_bytes());
    log_of(bytes, &ledger.key)
}

/// A ledger with parameters that no ledger can have.
pub fn genesis_with(params: &Params) -> ProofFile<'static> {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let ledger = Ledger::new("ledger.example", cluster(), &[7; 32], params, map);
    log_of(ledger.headers[0].encode(), &ledger.key)
}

/// The bytes of an operation list.
pub fn operation_list(operations: &[(&[u8], RecordBody)]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(operations.len() as u32);
    for (key, body) in operations {
        match body {
            RecordBody::Put { value_len, value_hash } => {
                out.u8(0);
                out.str16(key);
                out.u32(*value_len);
                out.digest(value_hash);
            }
            RecordBody::Tombstone => {
                out.u8(1);
                out.str16(key);
            }
        }
    }
    out.into_bytes()
}

/// A ledger that put `z` into the shard of the keys below `m`.
pub fn wrong_shard() -> Ledger {
    let mut liar = Liar::new();
    liar.commit(&[Told::of(0, &[b"z"])], |_| {});
    liar.ledger
}
