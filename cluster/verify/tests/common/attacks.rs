//! Attacks of a lying server, each with the step at which it must fail.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::{borrow::Cow, collections::BTreeSet};

use coppice_types::{ClusterId, Digest, Stamp};
use coppice_verify::{
    checkpoint::Checkpoint,
    epochs::Pair,
    hash::{RecordBody, sha256},
    note::SignerKey,
    proof::{Entry, NodePart, Proof, ProofFile, Query, QueryProof, ReceiptProof, StandingProof, Subtree},
    replay::{self, Ledger, Node, Tree},
};

use super::{Sample, cluster, params};

/// A proof file that must be refused.
pub struct Attack {
    pub name: &'static str,
    /// The step that must refuse it.
    pub step: &'static str,
    pub file: ProofFile<'static>,
    /// A newer checkpoint, for attacks on that.
    pub newer: Option<Vec<u8>>,
}

/// The keys that the attacks are about, found in the sample.
pub struct Targets {
    /// A version with all of these keys.
    pub stamp: Stamp,
    /// A key whose newest record is in the active tree and hides an older one in a frozen tree.
    pub updated: Vec<u8>,
    /// A key with a live value in a frozen tree.
    pub old: Vec<u8>,
    /// A key without a record, between others of the same shard as `updated`.
    pub absent: Vec<u8>,
}

fn in_tree(tree: &Tree, key: &[u8]) -> bool {
    tree.records().iter().any(|record| record.key == key && record.body != RecordBody::Tombstone)
}

pub fn targets(sample: &Sample) -> Targets {
    for stamp in sample.standing().into_iter().rev() {
        for forest in &sample.ledger.versions[&stamp].forests {
            let trees = forest.trees();
            let held: Vec<Vec<u8>> = trees[0].records().iter().map(|record| record.key.clone()).collect();
            let updated =
                held.iter().find(|key| in_tree(trees[0], key) && trees[1..].iter().any(|tree| in_tree(tree, key)));
            let live = forest.live();
            let old =
                live.iter().find(|record| !held.contains(&record.key) && in_tree(trees[trees.len() - 1], &record.key));
            if let (Some(updated), Some(old), true) = (updated, old, held.len() >= 5 && live.len() >= 8) {
                let absent = [&live[2].key[..], b"x"].concat();
                return Targets { stamp, updated: updated.clone(), old: old.key.clone(), absent };
            }
        }
    }
    panic!("the sample has a version with an update that hides an older record");
}

fn query<'p>(file: &'p mut ProofFile<'static>) -> &'p mut QueryProof<'static> {
    match &mut file.proof {
        Proof::Query(proof) => proof,
        _ => panic!("not a query proof"),
    }
}

fn receipt<'p>(file: &'p mut ProofFile<'static>) -> &'p mut ReceiptProof<'static> {
    match &mut file.proof {
        Proof::Receipt(proof) => proof,
        _ => panic!("not a receipt"),
    }
}

fn standing<'p>(file: &'p mut ProofFile<'static>) -> &'p mut StandingProof<'static> {
    match &mut file.proof {
        Proof::Standing(proof) => proof,
        _ => panic!("not a standing proof"),
    }
}

fn root_of<'p>(subtree: &'p mut Subtree<'static>) -> &'p mut NodePart<'static> {
    match subtree {
        Subtree::Expanded(node) => node,
        Subtree::Hash(_) => panic!("the node is shown"),
    }
}

/// The lowest expanded node, along the first expanded children.
fn leaf_of<'p>(subtree: &'p mut Subtree<'static>) -> &'p mut NodePart<'static> {
    let node = root_of(subtree);
    let expanded = |entry: &Entry<'_>| matches!(entry, Entry::Child { child: Subtree::Expanded(_), .. });
    match node.entries.iter().position(|(_, entry)| expanded(entry)) {
        None => node,
        Some(at) => match &mut node.entries[at].1 {
            Entry::Child { child, .. } => leaf_of(child),
            Entry::Record { .. } => panic!("found as a child"),
        },
    }
}

/// Shows the whole tree except for the keys that `hide` selects: a prover that leaves records out.
pub fn hiding(node: &Node, hide: &dyn Fn(&[u8]) -> bool) -> NodePart<'static> {
    let shown: BTreeSet<usize> = match node {
        Node::Leaf(records) => (0..records.len()).filter(|index| !hide(&records[*index].key)).collect(),
        Node::Inner { entries, .. } => (0..entries.len()).collect(),
    };
    replay::part(node, &shown, |_, child| match child {
        Node::Leaf(records) if records.iter().all(|record| hide(&record.key)) => Subtree::Hash(child.hash()),
        _ => Subtree::Expanded(hiding(child, hide)),
    })
}

/// Shows only the last record below a node.
fn last_of(node: &Node) -> NodePart<'static> {
    let last = node.entry_hashes().len() - 1;
    replay::part(node, &BTreeSet::from([last]), |_, child| Subtree::Expanded(last_of(child)))
}

struct Maker<'s> {
    sample: &'s Sample,
    ledger: &'s Ledger,
    targets: Targets,
    attacks: Vec<Attack>,
}

impl Maker<'_> {
    fn add(&mut self, name: &'static str, step: &'static str, file: ProofFile<'static>) {
        self.attacks.push(Attack { name, step, file, newer: None });
    }

    fn key(&self, key: &[u8]) -> ProofFile<'static> {
        self.ledger.prove_keys(self.targets.stamp, &[key], true)
    }

    fn change(
        &mut self,
        name: &'static str,
        step: &'static str,
        mut file: ProofFile<'static>,
        change: impl FnOnce(&mut QueryProof<'static>),
    ) {
        change(query(&mut file));
        self.add(name, step, file);
    }

    fn shard(&self, key: &[u8]) -> usize {
        self.ledger.shard_map.index_of(key)
    }

    fn records(&mut self) {
        let ledger = self.ledger;
        let (updated, old, absent) =
            (self.targets.updated.clone(), self.targets.old.clone(), self.targets.absent.clone());
        let forest = ledger.versions[&self.targets.stamp].forests[self.shard(&updated)].clone();
        let trees = forest.trees();
        let file = self.key(&updated);
        let frozen = trees[1..].iter().position(|tree| in_tree(tree, &updated)).expect("an older record") + 1;
        let stale = {
            let mut frozen_only = forest.clone();
            frozen_only.active = Tree::empty();
            frozen_only.prove_keys(&[&updated])
        };
        let stale_record = trees[frozen].records().into_iter().find(|record| record.key == updated).cloned();
        let RecordBody::Put { value_hash, .. } = stale_record.expect("an older record").body else {
            panic!("the older record is a put")
        };
        let stale_value = ledger.values[&value_hash].clone();
        let root = trees[0].root.clone();
        self.change("a stale record of an older tree, the younger tree not shown", "query", file.clone(), |proof| {
            proof.shards[0].trees.trees[0].root = Subtree::Hash(root.hash());
            proof.shards[0].trees.trees[1..].clone_from_slice(&stale.trees[1..]);
            proof.values = Some(vec![Cow::Owned(stale_value.clone())]);
        });
        self.change(
            "a stale record of an older tree, the newer record hidden among its neighbours",
            "query",
            file.clone(),
            |proof| {
                let trees = &mut proof.shards[0].trees.trees;
                trees[0].root = Subtree::Expanded(hiding(&root, &|key| key == updated));
                trees[1..].clone_from_slice(&stale.trees[1..]);
                proof.values = Some(vec![Cow::Owned(stale_value.clone())]);
            },
        );
        self.change("a stale record, the youngest tree left out", "state", file.clone(), |proof| {
            proof.shards[0].trees.trees.remove(0);
            proof.shards[0].trees.trees.clone_from_slice(&stale.trees[1..]);
            proof.values = Some(vec![Cow::Owned(stale_value.clone())]);
        });
        self.change("a stale record, the youngest tree said to be empty", "state", file.clone(), |proof| {
            proof.shards[0].trees = stale.clone();
            proof.values = Some(vec![Cow::Owned(stale_value.clone())]);
        });
        self.change("trees in another order", "state", file.clone(), |proof| proof.shards[0].trees.trees.swap(0, 1));
        self.change("another stamp of a record", "state", file.clone(), |proof| {
            for (_, entry) in &mut leaf_of(&mut proof.shards[0].trees.trees[0].root).entries {
                if let Entry::Record { stamp, .. } = entry {
                    stamp.version.0 -= 1;
                }
            }
        });
        self.change("a record from after the version", "tree", file.clone(), |proof| {
            for (_, entry) in &mut leaf_of(&mut proof.shards[0].trees.trees[0].root).entries {
                if let Entry::Record { stamp, .. } = entry {
                    stamp.version.0 = 1000;
                }
            }
        });
        self.change("a put turned into a tombstone", "state", file.clone(), |proof| {
            for (_, entry) in &mut leaf_of(&mut proof.shards[0].trees.trees[0].root).entries {
                if let Entry::Record { body, .. } = entry {
                    *body = RecordBody::Tombstone;
                }
            }
            proof.values = Some(Vec::new());
        });
        self.change("another number of entries of a tree", "state", file, |proof| {
            proof.shards[0].trees.trees[0].entries += 1;
        });
        self.absences(&updated, &old, &absent);
    }

    fn absences(&mut self, updated: &[u8], old: &[u8], absent: &[u8]) {
        let ledger = self.ledger;
        let forest = ledger.versions[&self.targets.stamp].forests[self.shard(updated)].clone();
        let hide = |keys: &[&[u8]]| {
            let mut list = forest.prove_keys(keys);
            for (tree, shown) in forest.trees().iter().zip(&mut list.trees) {
                if !tree.records().is_empty() {
                    shown.root = Subtree::Expanded(hiding(&tree.root, &|key| keys.contains(&key)));
                }
            }
            list
        };
        let hidden = hide(&[updated]);
        let absent_file = self.key(updated);
        self.change("absence of a present key, its records hidden", "query", absent_file.clone(), |proof| {
            proof.shards[0].trees = hidden;
            proof.values = Some(Vec::new());
        });
        let old_file = self.key(old);
        let empty = self.key(absent);
        let far = forest.live().pop().expect("live records").key;
        self.change("absence of a present key, shown by another key's proof", "query", empty.clone(), |proof| {
            proof.query = Query::Keys(vec![Cow::Owned(far.clone())]);
        });
        self.change("absence of a present key, its neighbours renumbered", "tree", old_file.clone(), |proof| {
            let trees = &mut proof.shards[0].trees.trees;
            let last = trees.len() - 1;
            leaf_of(&mut trees[last].root).count -= 1;
        });
        self.change("absence of a present key, an older tree not shown", "query", empty.clone(), |proof| {
            let tree = *forest.trees().last().expect("a tree");
            let trees = &mut proof.shards[0].trees.trees;
            let last = trees.len() - 1;
            trees[last].root = Subtree::Hash(tree.root.hash());
        });
        self.behind_a_leaf();
        self.below_its_node();
        self.change("presence without the leaf", "query", old_file.clone(), |proof| {
            let trees = &mut proof.shards[0].trees.trees;
            let last = trees.len() - 1;
            trees[last].root = Subtree::Hash(forest.trees()[last].root.hash());
        });
        self.change("another key than the record's", "query", old_file, |proof| {
            proof.query = Query::Keys(vec![Cow::Owned([old, b"\0"].concat())]);
        });
    }

    /// Attacks on proofs of absence, for a key that would be the first of its node.
    fn behind_a_leaf(&mut self) {
        let ledger = self.ledger;
        let forests = &ledger.versions[&self.targets.stamp].forests;
        let first_of_second = |tree: &Tree| match &tree.root {
            Node::Inner { entries, .. } => {
                let below = Tree { root: entries[1].1.clone() };
                below.records().first().map(|record| record.key.clone())
            }
            Node::Leaf(_) => None,
        };
        let (forest, at, key) = forests
            .iter()
            .find_map(|forest| {
                let trees = forest.trees();
                let live = |at: &usize| forest.get(&first_of_second(trees[*at])?);
                let only = |at: &usize| live(at).is_some_and(|record| trees[*at].records().contains(&&record));
                let at = (1..trees.len()).find(only)?;
                Some((forest, at, first_of_second(trees[at])?))
            })
            .expect("a frozen tree of two leaves whose second begins with a live record");
        let mut without = forest.clone();
        // Without the younger tree's records, the walk of the key begins as if that tree were
        // empty.
        without.frozen[at - 1].tree = Tree::empty();
        let mut list = without.prove_keys(&[&key]);
        let tree = forest.trees()[at].clone();
        (list.trees[at].level, list.trees[at].entries) = (tree.root.level(), tree.records().len() as u64);
        let show = |revealed: &[usize], first: &dyn Fn(&Node) -> Subtree<'static>| {
            let mut list = list.clone();
            let revealed = revealed.iter().copied().collect();
            let part = replay::part(&tree.root, &revealed, |index, child| match index {
                0 => first(child),
                _ => Subtree::Hash(child.hash()),
            });
            list.trees[at].root = Subtree::Expanded(part);
            list
        };
        let expanded = |child: &Node| Subtree::Expanded(last_of(child));
        let file = self.key(&key);
        let cases = [
            ("absence of a present key behind the previous leaf, the next leaf not shown", show(&[0], &expanded)),
            (
                "absence of a present key behind the previous leaf, its own leaf shown as the next",
                show(&[0, 1], &expanded),
            ),
            ("absence of a present key by the separator of its leaf", show(&[1], &expanded)),
        ];
        for (name, trees) in cases {
            self.change(name, "query", file.clone(), |proof| {
                proof.shards[0].trees = trees;
                proof.values = Some(Vec::new());
            });
        }
        let honest = forest.prove_range(b"", None);
        for (name, index) in
            [("a first entry with a separator", 0), ("a separator above the first key of its child", 1)]
        {
            let mut trees = honest.clone();
            if let (_, Entry::Child { separator, .. }) = &mut root_of(&mut trees.trees[at].root).entries[index] {
                separator.to_mut().extend([0xff; 2]);
            }
            let range = ledger.prove_range(self.targets.stamp, &key, Some(&[&key[..], b"\0"].concat()), false);
            self.change(name, "tree", range, |proof| proof.shards[0].trees = trees);
        }
    }

    /// Moves the second separator of a node below the node's own bound. The first entry is
    /// revealed, too.
    fn below_its_node(&mut self) {
        let ledger = self.ledger;
        let stamp = self.targets.stamp;
        let mut file = ledger.prove_range(stamp, b"", None, false);
        let trees = query(&mut file).shards.iter_mut().flat_map(|shard| &mut shard.trees.trees);
        let root = trees.filter(|tree| tree.level >= 2).map(|tree| root_of(&mut tree.root)).next();
        match &mut root.expect("a tree of three levels").entries[1].1 {
            Entry::Child { child, .. } => match &mut root_of(child).entries[1].1 {
                Entry::Child { separator, .. } => *separator = Cow::Borrowed(b"\x01"),
                Entry::Record { .. } => panic!("a node of level 1"),
            },
            Entry::Record { .. } => panic!("a node of level 2"),
        }
        self.add("a separator below that of its node, behind the first entry", "tree", file);
    }

    fn values(&mut self) {
        let ledger = self.ledger;
        let file = self.key(&self.targets.old.clone());
        self.change("another value", "value", file.clone(), |proof| {
            let values = proof.values.as_mut().expect("values were wanted");
            let mut value = values[0].to_vec();
            value[0] ^= 1;
            values[0] = Cow::Owned(value);
        });
        self.change("a longer value", "value", file.clone(), |proof| {
            let values = proof.values.as_mut().expect("values were wanted");
            values[0].to_mut().push(0);
        });
        self.change("a missing value", "value", file.clone(), |proof| proof.values = Some(Vec::new()));
        self.change("a value too many", "value", file, |proof| {
            proof.values.as_mut().expect("values were wanted").push(Cow::Borrowed(b"more"));
        });
        let range = ledger.prove_range(self.targets.stamp, b"", None, true);
        self.change("values of two records swapped", "value", range, |proof| {
            let values = proof.values.as_mut().expect("values were wanted");
            let other = values.iter().position(|value| *value != values[0]).expect("two values");
            values.swap(0, other);
        });
    }

    fn ranges(&mut self) {
        let ledger = self.ledger;
        let stamp = self.targets.stamp;
        let forest = ledger.versions[&stamp].forests[self.shard(&self.targets.updated)].clone();
        let shard = ledger.shard_map.shard_of(&self.targets.updated).clone();
        let live = forest.live();
        let (low, high) = (live[1].key.clone(), live[live.len() - 2].key.clone());
        let file = ledger.prove_range(stamp, &low, Some(&high), false);
        let hidden = |hide: &dyn Fn(&[u8]) -> bool| {
            let mut list = forest.prove_range(&low, Some(&high));
            for (tree, shown) in forest.trees().iter().zip(&mut list.trees) {
                if !tree.records().is_empty() {
                    shown.root = Subtree::Expanded(hiding(&tree.root, hide));
                }
            }
            list
        };
        let last = live[live.len() - 3].key.clone();
        let middle = live[live.len() / 2].key.clone();
        let cases = [
            ("a range without its last record", hidden(&|key| key >= &last[..])),
            ("a range without its first record", hidden(&|key| key <= &low[..])),
            ("a range without one record", hidden(&|key| key == &middle[..])),
        ];
        for (name, list) in cases {
            self.change(name, "query", file.clone(), |proof| proof.shards[0].trees = list);
        }
        self.change("a range that begins before what is shown", "query", file.clone(), |proof| {
            proof.query = Query::Range { low: Cow::Owned(shard.low.clone()), high: Some(Cow::Owned(high.clone())) };
        });
        self.change("a range that ends after what is shown", "query", file.clone(), |proof| {
            proof.query = Query::Range { low: Cow::Owned(low.clone()), high: shard.high.clone().map(Cow::Owned) };
        });
        self.change("a range that ends in a shard that is not shown", "query", file.clone(), |proof| {
            proof.query = Query::Range { low: Cow::Borrowed(b""), high: Some(Cow::Owned(high.clone())) };
        });
        self.change("a range with a record of another key", "state", file.clone(), |proof| {
            let node = leaf_of(&mut proof.shards[0].trees.trees[0].root);
            if let Some((_, Entry::Record { key, .. })) = node.entries.last_mut() {
                key.to_mut().push(b'x');
            }
        });
        self.change("a range padded with a record", "tree", file.clone(), |proof| {
            let node = leaf_of(&mut proof.shards[0].trees.trees[0].root);
            let (index, mut entry) = node.entries.last().expect("a record").clone();
            if let Entry::Record { key, .. } = &mut entry {
                key.to_mut().push(0);
            }
            node.entries.push((index + 1, entry));
        });
        self.change("records of a range out of order", "tree", file, |proof| {
            let node = leaf_of(&mut proof.shards[0].trees.trees[0].root);
            node.entries.reverse();
        });
        let whole = ledger.prove_range(stamp, b"", None, false);
        self.change("a range without its middle shard", "query", whole.clone(), |proof| {
            let leaves = &ledger.versions[&stamp].leaves;
            let hashes: Vec<Digest> = leaves.iter().map(coppice_verify::shard_map::StateLeaf::hash).collect();
            proof.shards.remove(1);
            proof.state_hashes = coppice_verify::merkle::list_proof(&hashes, &[0, 2]);
        });
        self.change("shards of a range swapped", "state", whole, |proof| proof.shards.swap(0, 1));
    }

    fn states(&mut self) {
        let ledger = self.ledger;
        let (stamp, old) = (self.targets.stamp, self.targets.old.clone());
        let file = self.key(&old);
        let other_key: &[u8] = if self.shard(&old) == 0 { b"key-99" } else { b"key-00" };
        let elsewhere = self.key(other_key);
        self.change("the record of a key in another shard's trees", "query", elsewhere.clone(), |proof| {
            proof.query = Query::Keys(vec![Cow::Owned(old.clone())]);
        });
        for (name, own, other) in
            [("absence of a key shown by a later shard", 0, 2), ("absence of a key shown by an earlier shard", 2, 0)]
        {
            let forests = &ledger.versions[&stamp].forests;
            let present = forests[own].live().first().expect("a live record").key.clone();
            let other_low = ledger.shard_map.shards()[other].low.clone();
            let other_key = if other_low.is_empty() { b"key-00".to_vec() } else { other_low };
            self.change(name, "query", ledger.prove_keys(stamp, &[&other_key], false), |proof| {
                proof.query = Query::Keys(vec![Cow::Owned(present)]);
                proof.shards[0].trees = forests[other].prove_range(b"", None);
            });
        }
        self.change("another shard's bounds", "state", elsewhere, |proof| {
            proof.query = Query::Keys(vec![Cow::Owned(old.clone())]);
            proof.shards[0].low = Cow::Borrowed(b"");
            proof.shards[0].high = None;
        });
        self.change("another shard's id", "state", file.clone(), |proof| proof.shards[0].shard.0 += 1);
        self.change("another shard's place", "state", file.clone(), |proof| {
            proof.shards[0].index = (proof.shards[0].index + 1) % 3;
        });
        self.change("a wider key range", "state", file.clone(), |proof| proof.shards[0].low = Cow::Borrowed(b""));
        self.change("another shard version", "state", file.clone(), |proof| proof.shards[0].version.0 -= 1);
        self.change("a shard version above the version", "state", file.clone(), |proof| {
            proof.shards[0].version.0 = stamp.version.0 + 1;
        });
        self.change("swapped siblings in the state", "state", file.clone(), |proof| proof.state_hashes.swap(0, 1));
        self.change(
            "a shard that holds none of the keys",
            "query",
            ledger.prove_keys(stamp, &[&old, other_key], false),
            |proof| {
                proof.query = Query::Keys(vec![Cow::Owned(old.clone())]);
            },
        );
        self.change("no shard at all", "state", file.clone(), |proof| proof.shards.clear());
        self.change("swapped siblings in a node", "state", file.clone(), |proof| {
            let swapped = proof.shards[0].trees.trees.iter_mut().any(|tree| match &mut tree.root {
                Subtree::Expanded(node) if node.hashes.len() >= 2 => {
                    node.hashes.swap(0, 1);
                    true
                }
                _ => false,
            });
            assert!(swapped, "a node with two hashes");
        });
        self.change("a missing hash in a node", "tree", file.clone(), |proof| {
            let tree = proof.shards[0].trees.trees.iter_mut().find_map(|tree| match &mut tree.root {
                Subtree::Expanded(node) if !node.hashes.is_empty() => Some(node),
                _ => None,
            });
            tree.expect("a node with hashes").hashes.pop();
        });
        self.change("a hash too many in a node", "tree", file, |proof| {
            let trees = &mut proof.shards[0].trees.trees;
            let last = trees.len() - 1;
            root_of(&mut trees[last].root).hashes.push(Digest([1; 32]));
        });
    }

    fn versions(&mut self) {
        let (ledger, sample) = (self.ledger, self.sample);
        let (stamp, old) = (self.targets.stamp, self.targets.old.clone());
        let file = self.key(&old);
        let size = ledger.headers.len() as u64;
        let earlier = ledger.epochs.stamp_of(coppice_types::Version(stamp.version.0 - 3));
        let before = ledger.prove_keys(earlier, &[&old], false);
        self.change("the header of another version", "state", before, |proof| {
            proof.header = ledger.header_part(stamp, size);
            proof.epoch = ledger.epoch_part(stamp, size);
        });
        self.change("a changed header", "header", file.clone(), |proof| {
            let at = proof.header.header.len() - 3;
            proof.header.header.to_mut()[at - 40] ^= 1;
        });
        self.change("a header of another cluster", "header", file.clone(), |proof| {
            proof.header.header.to_mut()[2] ^= 1;
        });
        self.change("a header with another's path", "header", file.clone(), |proof| {
            proof.header.path = ledger.header_part(earlier, size).path;
        });
        self.change("swapped siblings on the header's path", "header", file.clone(), |proof| {
            proof.header.path.swap(0, 1);
        });
        let rollback = ledger.headers.iter().find(|header| header.kind() == 2).expect("a rollback");
        let entries: Vec<Digest> = ledger.headers.iter().map(coppice_verify::header::Header::hash).collect();
        let rollback_path = coppice_verify::merkle::inclusion_path(&entries, rollback.sequence.0);
        self.change("the header of a rollback as a version's", "header", file.clone(), |proof| {
            proof.header.header = Cow::Owned(rollback.encode());
            proof.header.path = rollback_path;
        });
        let dead = *sample.states.keys().find(|stamp| !ledger.epochs.stands(**stamp)).expect("a dead version");
        let died_at = ledger.versions[&dead].header.sequence.0 + 1;
        let honest_then = {
            // The proof that the server could give before the rollback, with the log of today
            // around it.
            let part = ledger.versions[&dead].forests[self.shard(&old)].prove_keys(&[&old]);
            let leaves = &ledger.versions[&dead].leaves;
            let hashes: Vec<Digest> = leaves.iter().map(coppice_verify::shard_map::StateLeaf::hash).collect();
            let mut then = file.clone();
            let proof = query(&mut then);
            proof.header = ledger.header_part(dead, size);
            proof.shards[0].trees = part;
            proof.shards[0].version = leaves[self.shard(&old)].version;
            proof.state_hashes = coppice_verify::merkle::list_proof(&hashes, &[self.shard(&old) as u64]);
            proof.values = None;
            then
        };
        self.change("a rolled-back version with the pair of its epoch", "epoch", honest_then.clone(), |proof| {
            proof.epoch = ledger.epoch_part(Stamp::default(), size);
        });
        self.change("a rolled-back version without the next pair", "epoch", honest_then.clone(), |proof| {
            proof.epoch = ledger.epoch_part(Stamp::default(), size);
            let pairs = ledger.epochs.leaves();
            proof.epoch.hashes = coppice_verify::merkle::list_proof(&pairs, &[0]);
            proof.epoch.next = None;
        });
        self.change(
            "a rolled-back version with the pairs before the rollback",
            "epoch",
            honest_then.clone(),
            |proof| {
                proof.epoch = ledger.epoch_part(dead, died_at);
            },
        );
        self.change("a rolled-back version by the newest pair", "epoch", honest_then, |proof| {
            proof.epoch = ledger.epoch_part(ledger.epochs.stamp_of(ledger.head().version), size);
        });
        self.change("a pair of another base", "epoch", file, |proof| proof.epoch.pair.base.0 ^= 1);
    }

    fn logs(&mut self) {
        let ledger = self.ledger;
        let old = self.targets.old.clone();
        let file = self.key(&old);
        let size = ledger.headers.len() as u64;
        let mut moved = file.clone();
        moved.cluster = ClusterId([0xc1; 16]);
        self.add("another cluster's file", "checkpoint", moved);
        let mut other = Sample::new(&params(), 5);
        other.commit_random(9);
        assert_eq!(other.ledger.cluster, cluster());
        let foreign = SignerKey::from_seed(ledger.key.name(), &[8; 32]).expect("a name");
        let checkpoint = ledger.checkpoint(size);
        let forged = checkpoint.sign(&foreign).expect("the same origin");
        self.change("a checkpoint signed by a foreign key", "checkpoint", file.clone(), |proof| {
            proof.log.checkpoint = Cow::Owned(forged.into_bytes());
        });
        let longer = Checkpoint { size: size + 1, ..checkpoint.clone() };
        let signature = ledger.log_part(size).checkpoint;
        let signature = String::from_utf8(signature.into_owned()).expect("a note is UTF-8");
        let (_, line) = signature.split_once("\n\n").expect("a note");
        let changed = format!("{}\n{line}", longer.text());
        self.change("a checkpoint of another size under the same signature", "checkpoint", file.clone(), |proof| {
            proof.log.checkpoint = Cow::Owned(changed.into_bytes());
        });
        let extended = ledger.key.sign_note(&format!("{}more\n", checkpoint.text())).expect("a text");
        self.change("a checkpoint with an extension line", "checkpoint", file.clone(), |proof| {
            proof.log.checkpoint = Cow::Owned(extended.into_bytes());
        });
        self.change("no signature", "checkpoint", file.clone(), |proof| {
            proof.log.checkpoint = Cow::Owned(checkpoint.text().into_bytes());
        });
        let fork = Checkpoint { root: other.ledger.checkpoint(2).root, ..checkpoint };
        let fork = fork.sign(&ledger.key).expect("the key's origin");
        self.change("a checkpoint of another log", "newest_header", file.clone(), |proof| {
            proof.log.checkpoint = Cow::Owned(fork.into_bytes());
        });
        self.change("an older header as the newest", "newest_header", file.clone(), |proof| {
            let entries: Vec<Digest> = ledger.headers.iter().map(coppice_verify::header::Header::hash).collect();
            proof.log.newest_header = Cow::Owned(ledger.headers[size as usize - 2].encode());
            proof.log.path = coppice_verify::merkle::inclusion_path(&entries, size - 2);
        });
        self.change("a missing hash on the newest header's path", "newest_header", file, |proof| {
            proof.log.path.pop();
        });
    }

    fn receipts(&mut self) {
        let (ledger, sample) = (self.ledger, self.sample);
        let stamp = self.targets.stamp;
        let file = ledger.receipt(stamp, 1);
        let mut change = |name, step, change: &dyn Fn(&mut ReceiptProof<'static>)| {
            let mut file = file.clone();
            change(receipt(&mut file));
            self.add(name, step, file);
        };
        change("a batch at another place of the journal", "journal", &|proof| proof.index = 0);
        change("a changed batch", "journal", &|proof| {
            let at = proof.entry.len() - 1;
            proof.entry.to_mut()[at] ^= 1;
        });
        change("a batch of another version", "journal", &|proof| {
            proof.header = ledger.header_part(ledger.epochs.stamp_of(coppice_types::Version(2)), proof_size(ledger));
            proof.epoch = ledger.epoch_part(ledger.epochs.stamp_of(coppice_types::Version(2)), proof_size(ledger));
        });
        change("the receipt of genesis", "header", &|proof| {
            proof.header = ledger.header_part(Stamp::default(), proof_size(ledger));
        });
        let dead = *sample.states.keys().find(|stamp| !ledger.epochs.stands(**stamp)).expect("a dead version");
        change("the receipt of a rolled-back version", "epoch", &|proof| {
            proof.header = ledger.header_part(dead, proof_size(ledger));
            proof.epoch = ledger.epoch_part(Stamp::default(), proof_size(ledger));
        });
        let merged = ledger.versions.values().find(|version| version.journal.len() == 3);
        let merged = merged.expect("a version with a merge").header.stamp;
        let merge = ledger.receipt(if ledger.epochs.stands(merged) { merged } else { stamp }, 2);
        self.add("a merge as a batch", "journal", merge);
    }

    fn standings(&mut self) {
        let ledger = self.ledger;
        let size = ledger.headers.len() as u64;
        let file = ledger.standing(10, size);
        let mut change = |name, change: &dyn Fn(&mut StandingProof<'static>)| {
            let mut file = file.clone();
            change(standing(&mut file));
            self.add(name, "standing", file);
        };
        change("another old root", &|proof| proof.old_root = sha256(b"fork"));
        change("another old size", &|proof| proof.old_size = 9);
        change("an old size above the new", &|proof| proof.old_size = size + 1);
        change("swapped hashes of the consistency path", &|proof| proof.path.swap(0, 1));
        change("a missing hash of the consistency path", &|proof| proof.path.truncate(proof.path.len() - 1));
        change("other pairs", &|proof| proof.pairs[1].base.0 += 1);
        change("a pair left out", &|proof| proof.pairs.truncate(proof.pairs.len() - 1));
        change("pairs that no rollbacks leave", &|proof| proof.pairs.reverse());
        change("a pair too many", &|proof| {
            let last = proof.pairs[proof.pairs.len() - 1];
            proof.pairs.push(Pair { epoch: last.epoch.next(), base: last.base.next() });
        });
    }

    fn newer(&mut self) {
        let ledger = self.ledger;
        let stamp = self.targets.stamp;
        let old_size = ledger.headers.len() as u64;
        let file = self.key(&self.targets.old.clone());
        let mut later = Sample::standard();
        later.ledger.roll_back(coppice_types::Version(stamp.version.0 - 1));
        later.commit_random(3);
        let size = later.ledger.headers.len() as u64;
        let rolled_back = later.ledger.standing(old_size, size);
        let note = later.ledger.log_part(size).checkpoint.into_owned();
        let mut fork = Sample::new(&params(), 9);
        (0..size).for_each(|_| fork.commit_random(3));
        let forked = fork.ledger.standing(old_size, size);
        let mut foreign = rolled_back.clone();
        let foreign_key = SignerKey::from_seed(ledger.key.name(), &[8; 32]).expect("a name");
        let forged = later.ledger.checkpoint(size).sign(&foreign_key).expect("the same origin");
        standing(&mut foreign).log.checkpoint = Cow::Owned(forged.into_bytes());
        let mut elsewhere = rolled_back.clone();
        elsewhere.cluster = ClusterId([0xc1; 16]);
        let encode = |file: &ProofFile<'_>| file.encode().expect("it fits");
        for (name, newer) in [
            ("a version that was rolled back since", encode(&rolled_back)),
            ("a newer checkpoint alone, without a path", note),
            ("a newer checkpoint that extends another size", encode(&later.ledger.standing(old_size - 1, size))),
            ("a smaller checkpoint", encode(&later.ledger.standing(old_size - 2, old_size - 1))),
            ("a newer checkpoint of a fork", encode(&forked)),
            ("a newer checkpoint signed by a foreign key", encode(&foreign)),
            ("a newer checkpoint of another cluster", encode(&elsewhere)),
            ("a proof that is no standing proof as the newer checkpoint", encode(&file)),
            ("neither a note nor a proof file as the newer checkpoint", b"garbage".to_vec()),
            ("a damaged newer checkpoint", encode(&rolled_back)[..200].to_vec()),
        ] {
            self.attacks.push(Attack { name, step: "standing", file: file.clone(), newer: Some(newer) });
        }
    }
}

fn proof_size(ledger: &Ledger) -> u64 {
    ledger.headers.len() as u64
}

/// Every attack on the sample.
pub fn attacks(sample: &Sample) -> Vec<Attack> {
    let mut maker = Maker { sample, ledger: &sample.ledger, targets: targets(sample), attacks: Vec::new() };
    maker.records();
    maker.values();
    maker.ranges();
    maker.states();
    maker.versions();
    maker.logs();
    maker.receipts();
    maker.standings();
    maker.newer();
    maker.attacks
}
