use coppice_env::{Rng, SimRng};
use coppice_types::{Stamp, Version};
use coppice_verify::hash;

use super::*;
use crate::{
    node::{Body, ChildEntry, Entries, HashedRecord, LeafRecord, NewEntry, list::MerkleList},
    place::{
        page::PageFile,
        refs::{BlobRef, ValueRef},
    },
};

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:028}").into_bytes()
}

fn leaf_record(key: &[u8], version: u64) -> HashedRecord<'_> {
    let (hash, at) = (hash::sha256(&version.to_le_bytes()), ValueRef { segment: 1, offset: 2 });
    let body = Body::Stored { hash, len: 1024, blob: BlobRef { at, len: 1024 } };
    HashedRecord::new(LeafRecord { key, stamp: Stamp::new(1, version), body })
}

/// A whole leaf with these keys.
fn whole(keys: &[Vec<u8>]) -> (Node, Child) {
    let records: Vec<HashedRecord<'_>> = keys.iter().map(|key| leaf_record(key, 1)).collect();
    let draft = Draft::all_new(Version(1), 0, &records);
    let pid = Pid::new(PageFile::Data, 7, draft.pages());
    draft.place(pid)
}

/// The next version of a leaf, with some keys put and others removed.
fn next(old: &Node, version: u64, puts: &[Vec<u8>], removes: &[Vec<u8>]) -> Draft {
    let new: Vec<HashedRecord<'_>> = puts.iter().map(|key| leaf_record(key, version)).collect();
    let stays = |index: &usize| !puts.iter().chain(removes).any(|key| key == old.key(*index));
    let mut sources: Vec<Source> = (0..old.len()).filter(stays).map(Source::Old).collect();
    sources.extend((0..new.len()).map(Source::New));
    let entries = |sources| Entries { sources, old: Some(old), new: &new };
    let unsorted = sources.clone();
    sources.sort_by_key(|source| entries(&unsorted).key(*source));
    let entries = entries(&sources);
    let hashes = sources.iter().map(|source| match source {
        Source::Old(index) => old.record(*index).hash(),
        Source::New(index) => new[*index].hash,
    });
    let mut draft = Draft::new(Version(version), 0, &entries, &MerkleList::new(hashes.collect()));
    draft.patch = Patch::new(&draft, old, &sources);
    draft
}

/// No checksum covers the number of bytes spent.
#[test]
fn a_node_whose_patch_says_that_much_was_spent_is_stored_whole() {
    let keys: Vec<Vec<u8>> = (0..30).map(key).collect();
    let first = next(&whole(&keys).0, 2, &keys[3..4], &[]);
    let (mut node, _) = first.place(Pid::of_patch(0, 0));
    assert!(next(&node, 3, &keys[5..6], &[]).patch.is_some());
    node.base.as_mut().expect("it lies as a patch").spent = u32::MAX;
    assert!(next(&node, 3, &keys[5..6], &[]).patch.is_none());
}

#[test]
fn a_patch_gives_the_node_that_was_placed_through_many_versions() {
    let mut rng = SimRng::new(7);
    let keys: Vec<Vec<u8>> = (0..60).map(key).collect();
    let mut base = whole(&keys[..30]).0;
    let (mut node, mut patches, mut wholes, mut bytes) = (base.clone(), 0, 0, 0);
    for version in 2..600 {
        let some = |rng: &mut SimRng| keys[rng.below(60) as usize].clone();
        let mut puts: Vec<Vec<u8>> = (0..1 + rng.below(3)).map(|_| some(&mut rng)).collect();
        puts.sort();
        puts.dedup();
        let removes: Vec<Vec<u8>> =
            (0..rng.below(3)).map(|_| some(&mut rng)).filter(|key| !puts.contains(key)).collect();
        let draft = next(&node, version, &puts, &removes);
        let Some(patch) = draft.patch.clone() else {
            let pages = draft.pages();
            node = draft.place(Pid::new(PageFile::Data, version, pages)).0;
            bytes += node.bytes().len();
            (base, wholes) = (node.clone(), wholes + 1);
            continue;
        };
        let pid = Pid::of_patch(version, 3);
        let (placed, child) = draft.place(pid);
        let read = Node::patched(&patch.bytes, Some(&base), &child, 0).expect("what was written");
        assert_eq!((read.bytes(), read.base(), read.hash()), (placed.bytes(), placed.base(), child.hash));
        assert_eq!(read.base().map(|on| on.child().checksum), Some(base.checksum()));
        bytes += patch.bytes.len();
        (node, patches) = (placed, patches + 1);
    }
    // The average cost of a cycle is close to twice the square root of base times growth.
    assert!(patches > 5 * wholes && wholes > 10, "{patches} {wholes}");
    assert!(bytes < 598 * 4096 / 2, "{bytes}");
}

/// Children are renewed, added and removed. When the first one goes, the next takes its place
/// and loses its separator.
#[test]
fn a_patch_of_an_inner_node_gives_what_was_placed_through_many_versions() {
    let mut rng = SimRng::new(9);
    let child = |rng: &mut SimRng| Child {
        pid: Pid::new(PageFile::Data, rng.below(1 << 20), 1),
        checksum: rng.next_u64(),
        hash: hash::sha256(&rng.next_u64().to_le_bytes()),
    };
    let separator = |rng: &mut SimRng| (0..1 + rng.below(3)).map(|_| rng.below(7) as u8).collect::<Vec<_>>();
    let mut base: Option<Node> = None;
    let first = [ChildEntry { separator: Vec::new(), child: child(&mut rng) }];
    let mut draft = Draft::all_new(Version(1), 1, &first);
    draft.patch = Patch::whole(&draft);
    let (mut patches, mut wholes, mut firsts) = (0, 0, 0);
    for version in 2..3000 {
        let patch = draft.patch.clone().expect("it is small");
        let on_base = patch.base.is_some();
        let (node, place) = draft.place(Pid::of_patch(version, (version % 7) as u8));
        let read = Node::patched(&patch.bytes, base.as_ref().filter(|_| on_base), &place, 1);
        let read = read.expect("what was written");
        assert_eq!((read.bytes(), read.base(), read.hash()), (node.bytes(), node.base(), place.hash));
        if on_base {
            patches += 1;
        } else {
            (base, wholes) = (Some(node.clone()), wholes + 1);
        }
        let drops_first = node.len() > 20 || node.len() > 1 && rng.below(8) == 0;
        let mut new: Vec<ChildEntry> = Vec::new();
        let mut sources: Vec<Source> = Vec::new();
        for index in usize::from(drops_first)..node.len() {
            let renewed = rng.below(6) == 0;
            let separator = if sources.is_empty() { Vec::new() } else { node.key(index).to_vec() };
            if renewed || separator != node.key(index) {
                sources.push(Source::New(new.len()));
                let child = if renewed { child(&mut rng) } else { node.child(index) };
                new.push(ChildEntry { separator, child });
            } else {
                sources.push(Source::Old(index));
            }
        }
        firsts += u64::from(drops_first);
        let added = separator(&mut rng);
        if (0..node.len()).all(|index| node.key(index) != added) {
            let key = |source: &Source| match *source {
                Source::Old(index) => node.key(index),
                Source::New(index) => new[index].key(),
            };
            let at = sources.partition_point(|source| key(source) < &added[..]);
            sources.insert(at, Source::New(new.len()));
            new.push(ChildEntry { separator: added, child: child(&mut rng) });
        }
        let entries = Entries { sources: &sources, old: Some(&node), new: &new };
        let hashes = sources.iter().map(|source| match *source {
            Source::Old(index) => node.entry_hashes()[index],
            Source::New(index) => hash::entry_hash(&new[index].separator, &new[index].child.hash),
        });
        draft = Draft::new(Version(version), 1, &entries, &MerkleList::new(hashes.collect()));
        draft.patch = Patch::new(&draft, &node, &sources).or_else(|| Patch::whole(&draft));
    }
    assert!(patches > 500 && wholes > 100 && firsts > 100, "{patches} {wholes} {firsts}");
}

#[test]
fn a_small_node_is_a_patch_of_nothing_and_a_base() {
    let keys: Vec<Vec<u8>> = (0..40).map(key).collect();
    let records: Vec<HashedRecord<'_>> = keys.iter().map(|key| leaf_record(key, 1)).collect();
    assert_eq!(Patch::whole(&Draft::all_new(Version(1), 0, &records)), None);
    let mut draft = Draft::all_new(Version(1), 0, &records[..25]);
    draft.patch = Patch::whole(&draft);
    let patch = draft.patch.clone().expect("it is small");
    let (base, child) = draft.place(Pid::of_patch(9, 2));
    let read = Node::patched(&patch.bytes, None, &child, 0).expect("what was written");
    assert_eq!((read.bytes(), read.base(), read.hash()), (base.bytes(), None, child.hash));
    assert!(Node::patched(&patch.bytes, Some(&base), &child, 0).is_err());
    let draft = next(&base, 2, &keys[3..4], &[]);
    let upper = draft.patch.clone().expect("little has changed");
    let (placed, child) = draft.place(Pid::of_patch(9, 3));
    let read = Node::patched(&upper.bytes, Some(&base), &child, 0).expect("what was written");
    assert_eq!((read.bytes(), read.base()), (placed.bytes(), placed.base()));
    // A patch cannot rest on another patch.
    assert!(Node::patched(&upper.bytes, Some(&placed), &child, 0).is_err());
    assert!(Node::patched(&upper.bytes, None, &child, 0).is_err());
}

#[test]
fn every_flipped_bit_of_patch_and_base_is_found() {
    let keys: Vec<Vec<u8>> = (0..12).map(key).collect();
    let (base, _) = whole(&keys);
    let draft = next(&base, 2, &keys[3..5], &keys[7..8]);
    let patch = draft.patch.clone().expect("little has changed").bytes;
    let (_, child) = draft.place(Pid::of_patch(5, 0));
    for at in 0..patch.len() * 8 {
        let mut patch = patch.clone();
        patch[at / 8] ^= 1 << (at % 8);
        let bookkeeping = (16..22).contains(&(at / 8)) || at / 8 < 16;
        // `Store` checks the base's identity first. The rest of the head only determines when a new
        // base is made.
        assert!(bookkeeping || Node::patched(&patch, Some(&base), &child, 0).is_err(), "bit {at}");
    }
    let elsewhere = Child { pid: Pid::of_patch(5, 1), ..child };
    assert!(Node::patched(&patch, Some(&base), &elsewhere, 0).is_err());
    let (other, _) = whole(&keys[1..]);
    assert!(Node::patched(&patch, Some(&other), &child, 0).is_err());
}

#[test]
fn a_page_takes_patches_until_it_is_full_and_gives_them_back() {
    let mut page = PatchPage::new();
    let patches: Vec<Vec<u8>> = (0..=255_u8).map(|n| vec![n; usize::from(n % 5) + 9]).collect();
    for (slot, patch) in patches.iter().enumerate() {
        assert_eq!(page.push(patch), Some(slot as u8));
    }
    assert_eq!(page.push(&[1]), None);
    for (slot, patch) in patches.iter().enumerate() {
        assert_eq!(patch_in(page.bytes(), slot as u8), Some(patch.as_slice()));
    }
    let mut page = PatchPage::new();
    assert_eq!((page.push(&[7; 4094]), page.push(&[])), (Some(0), None));
    assert_eq!(patch_in(page.bytes(), 1), None);
}

/// The runs of a node's entries, each as its first entry of the base, their number, and the
/// indices of the new ones after them.
fn told(from: &[u16]) -> Vec<(u16, u16, std::ops::Range<usize>)> {
    runs(from).into_iter().map(|run| (run.first, run.count, run.new)).collect()
}

#[test]
fn entries_that_follow_each_other_in_the_base_are_one_run() {
    assert_eq!(told(&[0, 1, 2]), [(0, 3, 0..0)]);
    assert_eq!(told(&[4, 5, 8, 9]), [(4, 2, 0..0), (8, 2, 0..0)], "entries were removed");
    assert_eq!(told(&[0, 1, NEW, 2]), [(0, 2, 2..3), (2, 1, 0..0)]);
    assert_eq!(told(&[NEW, NEW, 0]), [(0, 0, 0..2), (0, 1, 0..0)], "the first ones are new");
}

#[test]
fn an_entry_with_a_key_of_the_base_stands_where_that_key_is_next() {
    assert_eq!(told(&[0, 1 | RENEWED, 2]), [(0, 1, 1..2), (2, 1, 0..0)]);
    assert_eq!(told(&[RENEWED, 1 | RENEWED, 2 | RENEWED]), [(0, 0, 0..3)]);
    assert_eq!(told(&[0, 5 | RENEWED]), [(0, 1, 0..0), (5, 0, 1..2)], "entries were removed before it");
    assert_eq!(told(&[0, NEW, 1 | RENEWED]), [(0, 1, 1..3)], "a new key comes before it");
}

#[test]
fn a_patch_that_no_engine_writes_is_refused() {
    let keys: Vec<Vec<u8>> = (0..12).map(key).collect();
    let (base, _) = whole(&keys);
    let draft = next(&base, 2, &keys[3..5], &keys[7..8]);
    let patch = draft.patch.clone().expect("little has changed").bytes;
    let (_, child) = draft.place(Pid::of_patch(5, 0));
    let error = |patch: &[u8]| Node::patched(patch, Some(&base), &child, 0).err();
    assert_eq!(error(&patch), None);
    for len in [0, 8, HEAD_BYTES - 1, HEAD_BYTES + RUN_BYTES - 1, patch.len() - 1] {
        assert_eq!(error(&patch[..len]), Some("patch"), "{len} bytes");
    }
    assert_eq!(error(&patch[..HEAD_BYTES]), Some("patch length"), "it has no entry");
    let with_run = |numbers: [u16; 3]| {
        let run: Vec<u8> = numbers.into_iter().flat_map(u16::to_le_bytes).collect();
        [&patch[..HEAD_BYTES], &run].concat()
    };
    assert_eq!(error(&with_run([0, 13, 0])), Some("patch"), "the base has twelve entries");
    assert_eq!(error(&with_run([12, 1, 0])), Some("patch"));
    assert_eq!(error(&with_run([0, 12, 1])), Some("patch"), "a new entry is cut off");
    assert_eq!(error(&with_run([0, 12, 0])), Some("checksum"), "the base's own entries");
}

#[test]
fn the_base_of_a_patch_has_a_place_and_a_count_unless_the_patch_is_of_nothing() {
    let base = Base {
        pid: Pid::new(PageFile::Data, 7, 1),
        checksum: 5,
        spent: 100,
        count: 2,
        patch_bytes: 22,
        from: Arc::default(),
    };
    let encoded = |base: &Base| {
        let mut bytes = Vec::new();
        base.encode(&mut bytes);
        bytes
    };
    assert_eq!(Base::of(&encoded(&base)), Some(Some(base.clone())));
    assert_eq!(Base::of(&[0; 22]), Some(None));
    assert_eq!(Base::of(&encoded(&Base { count: 0, ..base.clone() })), None);
    let mut no_place = encoded(&base);
    no_place[7] = 0;
    assert_eq!(Base::of(&no_place), None);
    assert_eq!(Base::of(&encoded(&base)[..21]), None);
}
