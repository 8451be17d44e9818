//! Parts of trees: changed, misshaped and incomplete ones.

use coppice_types::{Digest, Params};

use super::*;
use crate::{
    proof::TreeList,
    replay::{Forest, Record},
};

const STAMP: Stamp = Stamp::new(2, 9);

/// A forest whose active tree has these keys and several levels.
fn forest() -> Forest {
    let params = Params { node_bytes: 400, fanout: 4, key_bytes_max: 16, ..Params::default() };
    let mut forest = Forest::new(&params);
    let record = |key: u32| Record {
        key: alloc::format!("key-{key:03}").into_bytes(),
        stamp: Stamp::new(1, u64::from(key % 9)),
        body: if key.is_multiple_of(7) { RecordBody::Tombstone } else { RecordBody::put(&key.to_le_bytes()) },
    };
    forest.active = crate::replay::Tree::pack(&params, (0..200).step_by(2).map(record).collect());
    forest
}

fn root(tree: &Tree<'_>, stamp: Stamp) -> Result<Digest, Failure> {
    let mut plan = HashPlan::new(8);
    let planned = root_hash(&mut plan, tree, stamp)?;
    Ok(*plan.run().get(&planned))
}

fn only(list: TreeList<'static>) -> Tree<'static> {
    list.trees.into_iter().next().expect("there is an active tree")
}

/// The lowest expanded node along the first expanded children.
fn lowest<'t>(subtree: &'t mut Subtree<'static>) -> &'t mut NodePart<'static> {
    let Subtree::Expanded(node) = subtree else { panic!("it is expanded") };
    let expanded = |(_, entry): &(u16, Entry<'_>)| matches!(entry, Entry::Child { child: Subtree::Expanded(_), .. });
    match node.entries.iter().position(expanded) {
        None => node,
        Some(at) => match &mut node.entries[at].1 {
            Entry::Child { child, .. } => lowest(child),
            Entry::Record { .. } => unreachable!("it is a child"),
        },
    }
}

fn step<T>(result: Result<T, Failure>) -> Option<Step> {
    result.err().map(|failure| failure.step)
}

#[test]
fn present_and_absent_keys_are_found_as_the_model_has_them() {
    let forest = forest();
    let digest = forest.active.root.hash();
    assert!(forest.active.root.level() >= 2);
    for key in 0..201 {
        let key = alloc::format!("key-{key:03}").into_bytes();
        let tree = only(forest.prove_keys(&[&key]));
        assert_eq!(root(&tree, STAMP), Ok(digest));
        assert_eq!(check_count(&tree), Ok(()));
        let found = find(&tree, &key).expect("it is shown").map(|it| (it.key.to_vec(), it.stamp, *it.body));
        assert_eq!(found, forest.newest(&key).map(|record| (record.key, record.stamp, record.body)));
    }
}

#[test]
fn a_changed_record_separator_or_hash_gives_another_root() {
    let forest = forest();
    let (tree, digest) = (only(forest.prove_keys(&[b"key-050"])), forest.active.root.hash());
    let changed = |change: &dyn Fn(&mut NodePart<'static>)| {
        let mut tree = tree.clone();
        change(lowest(&mut tree.root));
        root(&tree, STAMP)
    };
    let record = |change: &dyn Fn(&mut Stamp, &mut RecordBody)| {
        changed(&|node| match &mut node.entries[0].1 {
            Entry::Record { stamp, body, .. } => change(stamp, body),
            Entry::Child { .. } => panic!("it is a leaf"),
        })
    };
    assert_eq!(changed(&|_| ()), Ok(digest));
    for result in [
        record(&|_, body| *body = RecordBody::put(b"another value")),
        record(&|_, body| *body = RecordBody::Tombstone),
        record(&|stamp, _| stamp.version.0 += 1),
        record(&|stamp, _| stamp.epoch.0 += 1),
        changed(&|node| node.hashes[0].0[31] ^= 1),
    ] {
        assert!(result.is_ok_and(|root| root != digest));
    }
    assert_eq!(step(changed(&|node| node.hashes.truncate(node.hashes.len() - 1))), Some(Step::Tree));
    assert_eq!(step(changed(&|node| node.hashes.push(digest))), Some(Step::Tree));
    assert_eq!(step(changed(&|node| node.entries[0].0 = node.count)), Some(Step::Tree));
}

#[test]
fn records_from_after_the_version_are_refused() {
    let tree = only(forest().prove_range(b"", None));
    assert!(root(&tree, Stamp::new(1, 8)).is_ok());
    for stamp in [Stamp::new(1, 7), Stamp::new(0, 8), Stamp::new(0, 100)] {
        assert_eq!(step(root(&tree, stamp)), Some(Step::Tree), "{stamp}");
    }
}

#[test]
fn nodes_that_no_tree_has_are_refused() {
    let forest = forest();
    let tree = only(forest.prove_range(b"", None));
    let refused = |change: &dyn Fn(&mut Tree<'static>)| {
        let mut tree = tree.clone();
        change(&mut tree);
        step(root(&tree, STAMP)) == Some(Step::Tree)
    };
    assert!(!refused(&|_| ()));
    assert!(refused(&|tree| tree.level += 1), "records in an inner node");
    assert!(refused(&|tree| tree.level -= 1), "children in a leaf");
    assert!(refused(&|tree| lowest(&mut tree.root).entries.swap(0, 1)), "keys out of order");
    assert!(refused(&|tree| lowest(&mut tree.root).entries[1].0 = 0), "an index twice");
    let empty = || Subtree::Expanded(NodePart { count: 0, entries: Vec::new(), hashes: Vec::new() });
    assert!(refused(&|tree| tree.root = empty()), "an inner node without entries");
    let set_key = |at: usize, new: &'static [u8]| {
        move |tree: &mut Tree<'static>| match &mut lowest(&mut tree.root).entries[at].1 {
            Entry::Record { key, .. } => *key = Cow::Borrowed(new),
            Entry::Child { .. } => panic!("it is a leaf"),
        }
    };
    let last = lowest(&mut tree.clone().root).entries.len() - 1;
    assert!(refused(&set_key(last, b"z")), "a key above the next separator");
    let separator = |at: usize, new: &'static [u8]| {
        move |tree: &mut Tree<'static>| {
            let Subtree::Expanded(node) = &mut tree.root else { panic!("it is expanded") };
            match &mut node.entries[at].1 {
                Entry::Child { separator, .. } => *separator = Cow::Borrowed(new),
                Entry::Record { .. } => panic!("it is an inner node"),
            }
        }
    };
    assert!(refused(&separator(0, b"a")), "a first separator that is not empty");
    assert!(refused(&separator(1, b"")), "a second separator that is empty");
}

#[test]
fn the_number_of_records_fits_what_is_shown() {
    let forest = forest();
    let whole = only(forest.prove_range(b"", None));
    let part = only(forest.prove_keys(&[b"key-050"]));
    let count = |tree: &Tree<'static>, entries: u64| step(check_count(&Tree { entries, ..tree.clone() }));
    assert_eq!(whole.entries, 100);
    assert_eq!([99, 100, 101].map(|entries| count(&whole, entries)), [Some(Step::Tree), None, Some(Step::Tree)]);
    let (least, exact) = records_below(&part.root);
    assert!(!exact && least < 100);
    assert_eq!(count(&part, least - 1), Some(Step::Tree));
    assert_eq!([least, 100, u64::MAX].map(|entries| count(&part, entries)), [None; 3]);
    let empty = Tree { level: 0, entries: 0, root: Subtree::Hash(hash::empty_root_hash()) };
    assert_eq!(count(&empty, 0), None);
    assert_eq!(count(&empty, 1), Some(Step::Tree));
    let hidden = Tree { level: 0, entries: 0, root: Subtree::Hash(Digest::default()) };
    assert_eq!(count(&hidden, 0), Some(Step::Tree));
    assert_eq!(step(find(&hidden, b"k")), Some(Step::Query));
    assert!(find(&empty, b"k").is_ok_and(|found| found.is_none()));
}

#[test]
fn a_part_without_the_nodes_on_the_way_proves_nothing() {
    let forest = forest();
    for key in [&b"key-050"[..], b"key-051", b"key-000", b"a", b"key-198", b"z"] {
        let mut tree = only(forest.prove_keys(&[key]));
        let Subtree::Expanded(node) = &mut tree.root else { panic!("it is expanded") };
        for (_, entry) in &mut node.entries {
            if let Entry::Child { child, .. } = entry {
                *child = Subtree::Hash(Digest::default());
            }
        }
        assert_eq!(step(find(&tree, key)), Some(Step::Query), "{key:?}");
    }
}

#[test]
fn a_range_is_shown_whole_or_not_at_all() {
    let forest = forest();
    let bounds: [(&[u8], Option<&[u8]>); 4] =
        [(b"", None), (b"key-050", Some(b"key-061")), (b"key-051", Some(b"key-052")), (b"z", None)];
    for (low, high) in bounds {
        let tree = only(forest.prove_range(low, high));
        let mut found = Vec::new();
        assert_eq!(scan(&tree, low, high, &mut found), Ok(()));
        let inside = |key: &[u8]| low <= key && high.is_none_or(|high| key < high);
        let expected = forest.active.records().into_iter().filter(|record| inside(&record.key));
        assert!(found.iter().map(|it| &it.key[..]).eq(expected.map(|record| &record.key[..])));
        let entries = lowest(&mut tree.clone().root).entries.len();
        for hidden in 0..entries {
            let mut tree = tree.clone();
            let removed = lowest(&mut tree.root).entries.remove(hidden).1;
            let mut rest = Vec::new();
            let complete = scan(&tree, low, high, &mut rest).is_ok();
            assert!(!complete || !inside(removed.key()) && rest.len() == found.len(), "entry {hidden} of {low:?}");
        }
    }
}
