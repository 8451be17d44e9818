//! Feeds mutations of a committed corpus to every decoder of bytes from a disk or a peer. No
//! decoder may panic, or take time or memory out of proportion to the bytes.
//!
//! `testdata/corpus` has inputs by kind, `<kind>-<number>`. `COPPICE_BLESS=1` writes those of the
//! present encoders; inputs that have failed are added by hand. Checksums are corrected after each
//! mutation, so that the code behind them is reached. Meta logs have a test of their own in
//! `files/meta_log`.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::{DiskStorage, OpenMode, Rng, SimRng, SimStorage, Storage};
use coppice_types::{Digest, Version};
use twox_hash::XxHash3_64;

use crate::{
    Engine, Manifest, Options,
    cache::shortcuts::{Gathered, Shortcut, ShortcutPage},
    files::{
        superblock::{SLOT_BYTES, Superblock},
        values::{self, RecordKind, ScrubPlace, ValueLog},
    },
    fsck,
    meta::rows::{Block, RowName},
    node::{Base, Body, Child, Node, patch_in},
    place::{
        page::{PAGE_BYTES, PageFile, Pid},
        refs::{BlobRef, RECORD_HEADER_BYTES, Segment, ValueRef},
    },
    store::filters::decode_filter,
};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/corpus");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v6-rows");
const ROUNDS: u64 = 3000;

fn mend(bytes: &mut [u8], at: usize, checksum: impl Fn(&[u8]) -> u64) {
    if let Some((head, rest)) = bytes.split_at_mut_checked(at + 8) {
        head[at..].copy_from_slice(&checksum(rest).to_le_bytes());
    }
}

fn superblock(mut bytes: Vec<u8>) {
    bytes.resize(SLOT_BYTES, 0);
    mend(&mut bytes, 8, XxHash3_64::oneshot);
    if let Some(found) = Superblock::decode(&bytes) {
        assert_eq!(Superblock::decode(&found.encode()), Some(found));
    }
}

fn manifest(bytes: Vec<u8>) {
    if let Ok(found) = Manifest::decode(&bytes) {
        assert_eq!(found.encode(), bytes);
        let _ = found.total_bytes();
    }
}

fn filter(bytes: Vec<u8>) {
    if let Some(filter) = decode_filter(&bytes) {
        let _ = filter.admits(b"a key");
    }
}

/// A node's span, with a matching reference of its parent.
fn node(mut bytes: Vec<u8>) {
    let word = |bytes: &[u8], at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if bytes.len() < 32 {
        return;
    }
    let Some(pid) = Pid::from_u64(word(&bytes, 8)) else { return };
    mend(&mut bytes, 0, |rest| XxHash3_64::oneshot_with_seed(pid.to_u64(), rest));
    let child = Child { pid, checksum: word(&bytes, 0), hash: Digest::default() };
    let level = bytes[25];
    let Ok(node) = Node::check(bytes.into(), &child, level) else { return };
    let _ = node.hash();
    let last = node.key(node.len() - 1).to_vec();
    assert_eq!(node.search(&last), Ok(node.len() - 1));
    for index in (0..node.len()).filter(|_| level > 0) {
        let _ = node.child(index);
    }
}

/// A node's span, and a page of patches that all have it as their base.
fn patches(bytes: Vec<u8>) {
    let Some((span, page)) = bytes.split_at_checked(PAGE_BYTES) else { return };
    let mut span = span.to_vec();
    let Some(pid) = Pid::from_u64(u64::from_le_bytes(*span[8..].first_chunk().expect("a page"))) else { return };
    mend(&mut span, 0, |rest| XxHash3_64::oneshot_with_seed(pid.to_u64(), rest));
    let checksum = u64::from_le_bytes(*span.first_chunk().expect("a page"));
    let level = span[25];
    let Ok(base) = Node::check(span.into(), &Child { pid, checksum, hash: Digest::default() }, level) else { return };
    for slot in 0..=u8::MAX {
        let Some(patch) = patch_in(page, slot) else { return };
        let pid = Pid::of_patch(0, slot);
        let child = Child { pid, checksum: 0, hash: Digest::default() };
        let base = Base::of(patch).flatten().map(|_| &base);
        let Ok((bytes, _)) = Node::apply(patch, base, &child, level) else { continue };
        let checksum = XxHash3_64::oneshot_with_seed(pid.to_u64(), &bytes[8..]);
        let Ok(node) = Node::patched(patch, base, &Child { checksum, ..child }, level) else { continue };
        let _ = node.hash();
        assert!(node.bytes().len() <= 4 * PAGE_BYTES);
    }
}

/// A segment of the value log, read from end to end.
fn segment(mut bytes: Vec<u8>) {
    let mut at = 0;
    while bytes.len() - at >= RECORD_HEADER_BYTES {
        let len = bytes[at + 8..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
        let end = (at + RECORD_HEADER_BYTES).saturating_add(len).min(bytes.len());
        mend(&mut bytes[at..end], 0, |rest| XxHash3_64::oneshot_with_seed(at as u64, rest));
        at = end;
    }
    let sim = SimStorage::new();
    let file = sim.open(&values::file_name(0), OpenMode::OpenOrCreate).expect("a new file");
    file.write_all_at(&bytes, 0).expect("room");
    let end = bytes.len() as u64;
    let segments = BTreeMap::from([(0, Segment { end, ..Segment::default() })]);
    let log = ValueLog::new(Arc::new(sim), 1 << 20, &segments, std::iter::empty());
    let mut place = ScrubPlace::default();
    while place.offset < end {
        for size in [0, 40, 100] {
            let _ = log.read_named(ValueRef { segment: 0, offset: place.offset as u32 }, size, b"k1");
        }
        match log.scrub(&mut place, end, 100, &|key| key == b"k2", &mut Vec::new()) {
            Ok(read) => assert!((1..=100).contains(&read)),
            Err(_) => return,
        }
    }
}

/// A page of shortcuts, with lookups of keys with all kinds of hashes.
fn shortcuts(mut bytes: Vec<u8>) {
    bytes.resize(PAGE_BYTES, 0);
    mend(&mut bytes, 0, |rest| XxHash3_64::oneshot_with_seed(0, rest));
    let at = ValueRef { segment: 0, offset: 0 };
    let Some(page) = ShortcutPage::check(bytes.into(), at) else { return };
    for remainder in (0..=u16::MAX).step_by(509) {
        if let Shortcut::Place { bytes, .. } = page.find(remainder) {
            assert!(bytes <= 2 << 20);
        }
    }
}

fn rows(bytes: Vec<u8>) {
    let name = RowName { id: 1, version: Version(1) };
    let at = BlobRef { at: ValueRef { segment: 0, offset: 0 }, len: bytes.len() as u32 };
    let block = Block { first: name, last: name, count: 2, at, installs: [].into() };
    let _ = block.decode_rows(&bytes);
}

type Decoder = fn(Vec<u8>);
const DECODERS: [(&str, Decoder); 8] = [
    ("superblock", superblock),
    ("manifest", manifest),
    ("filter", filter),
    ("node", node),
    ("patches", patches),
    ("segment", segment),
    ("shortcuts", shortcuts),
    ("rows", rows),
];

fn read(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name, OpenMode::Existing).expect("the file exists");
    let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("readable");
    bytes
}

/// A copy of the golden directory.
fn golden() -> SimStorage {
    let (golden, sim) = (DiskStorage::new(GOLDEN), SimStorage::new());
    for name in golden.list("").expect("a directory") {
        let file = sim.open(&name, OpenMode::CreateNew).expect("a new file");
        file.write_all_at(&read(&golden, &name), 0).expect("room");
    }
    sim
}

/// Inputs from the golden directory.
fn bless(corpus: &DiskStorage) {
    let sim = golden();
    let mut inputs: Vec<(&str, Vec<u8>)> = Vec::new();
    for slot in read(&sim, "superblock").chunks(SLOT_BYTES) {
        inputs.push(("superblock", slot[..200].to_vec()));
    }
    for file in [PageFile::Index, PageFile::Data] {
        let pages = read(&sim, file.name());
        inputs.extend(pages.chunks(PAGE_BYTES).step_by(7).take(3).map(|page| ("node", page.to_vec())));
    }
    // All patches of a page are applied to the base of one of the first two. Patches with another
    // base are hostile inputs as they are.
    let pages = read(&sim, PageFile::Patches.name());
    let base = |on: &Base| match on.pid.slot() {
        None => read(&sim, on.pid.file().name())[on.pid.offset_bytes() as usize..][..PAGE_BYTES].to_vec(),
        Some(slot) => {
            let whole = patch_in(&pages[on.pid.offset_bytes() as usize..], slot).expect("a base");
            let of_level = |level| Node::patched(whole, None, &on.child(), level).ok();
            (0..4).find_map(of_level).expect("a node of some level").bytes().to_vec()
        }
    };
    for page in pages.chunks(PAGE_BYTES) {
        let bases = (0..=u8::MAX).map_while(|slot| patch_in(page, slot)).filter_map(Base::of).flatten();
        inputs.extend(bases.take(1).map(|on| ("patches", [base(&on), page.to_vec()].concat())));
    }
    inputs.push(("segment", read(&sim, "values-0")));
    inputs.push(("filter", (0..128).collect()));
    let mut engine = Engine::open(sim.storage(), Options::default()).expect("a sound directory");
    let block = engine.meta.blocks.values().next().expect("the golden directory has rows in the value log");
    inputs.push(("rows", engine.store.values.read(RecordKind::Rows, block.at).expect("a sound directory")));
    inputs.push(("manifest", engine.pin_snapshot().expect("room").encode()));
    let filter_hashes: Vec<(u64, u64)> = (0..300).map(|number| ((number * 997 % 300) << 55, 0)).collect();
    let mut gathered = Gathered::default();
    gathered.extend((0..).zip(&filter_hashes).filter_map(|(number, filter_hash)| {
        let (hash, len) = (Digest::default(), 1000 + number % 7);
        let at = ValueRef { segment: number / 100, offset: number * 1100 };
        let body = Body::Stored { hash, len, blob: BlobRef { at, len: len + 20 } };
        Gathered::entry(*filter_hash, &body)
    }));
    inputs.push(("shortcuts", gathered.pages(&filter_hashes).expect("they are named")));
    corpus.create_dir_all("").expect("a directory");
    for (number, (kind, bytes)) in inputs.iter().enumerate() {
        let file = corpus.open(&format!("{kind}-{number}"), OpenMode::OpenOrCreate).expect("a file");
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).expect("room");
    }
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut SimRng) {
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 => {
                let piece = bytes[at..].iter().take(rng.below(40) as usize).copied().collect::<Vec<u8>>();
                bytes.splice(at..at, piece);
            }
            _ => {
                let value = [0, 1, 0x7f, 0x80, 0xff, rng.next_u64() as u8][rng.below(6) as usize];
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = value);
            }
        }
    }
}

/// Gets trust the names of values, so the check of a snapshot compares them with the leaves.
#[test]
fn a_value_with_another_name_or_of_another_place_is_found() {
    let names: Vec<String> = golden().list("").expect("a directory");
    let (mut names_changed, mut pages_changed) = (0, 0);
    for name in names.iter().filter(|name| values::file_number(name).is_some()) {
        let segment = values::file_number(name).expect("one of the value log");
        let bytes = read(&golden(), name);
        let mut at = 0;
        while at < bytes.len() {
            let len = u32::from_le_bytes(*bytes[at + 8..].first_chunk().expect("a length")) as usize;
            let end = at + RECORD_HEADER_BYTES + len;
            // A byte of the version, a byte of the key, and a byte of a remainder.
            let (positions, count): (&[usize], _) = match bytes[at + 12] {
                4 => (&[8, 18], &mut names_changed),
                5 => (&[24], &mut pages_changed),
                _ => (&[], &mut pages_changed),
            };
            for position in positions {
                let seed = |at: usize| u64::from(segment) << 32 | at as u64;
                let mut record = bytes[at..end].to_vec();
                record[RECORD_HEADER_BYTES + position] ^= 1;
                if bytes[at + 12] == 5 {
                    let page = RECORD_HEADER_BYTES;
                    mend(&mut record[page..], 0, |rest| XxHash3_64::oneshot_with_seed(seed(at + page), rest));
                }
                mend(&mut record, 0, |rest| XxHash3_64::oneshot_with_seed(seed(at), rest));
                let sim = golden();
                let file = sim.open(name, OpenMode::Existing).expect("it is there");
                file.write_all_at(&record, at as u64).expect("room");
                let report = fsck(Arc::new(sim)).expect("a directory");
                assert!(!report.is_clean(), "byte {position} of the record at {at} in {name}");
                *count += 1;
            }
            at = end;
        }
    }
    assert!(names_changed > 0 && pages_changed > 0);
}

#[test]
fn no_decoder_panics_on_mutations_of_the_corpus() {
    let corpus = DiskStorage::new(CORPUS);
    if std::env::var_os("COPPICE_BLESS").is_some() {
        bless(&corpus);
    }
    let names = corpus.list("").expect("the corpus is committed");
    for (kind, decode) in DECODERS {
        let inputs: Vec<&String> = names.iter().filter(|name| name.starts_with(&format!("{kind}-"))).collect();
        assert!(!inputs.is_empty(), "the corpus has no {kind}");
        for name in inputs {
            let input = read(&corpus, name);
            decode(input.clone());
            let mut rng = SimRng::new(input.len() as u64);
            for _ in 0..ROUNDS {
                let mut bytes = input.clone();
                mutate(&mut bytes, &mut rng);
                decode(bytes);
            }
        }
    }
}
