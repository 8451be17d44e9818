//! Compares every answer of an engine with the model.

use std::{borrow::Cow, collections::BTreeSet};

use coppice_engine::{Conflict, Engine, Error, KeyChange, Record, StagedInfo, View};
use coppice_env::{Rng, SimRng};
use coppice_types::{Change, Digest, Operation, Reason, Version};
use coppice_verify::{
    check::{Answer, verify_trees},
    hash,
    proof::{Query, TreeList},
};

use super::{
    model::{Entry, Live, Model, journal_of},
    pick,
    workload::Generator,
};

/// Compares the versions and their digests.
pub fn check_names(engine: &Engine, model: &Model) {
    assert_eq!(engine.decided(), model.tip().state);
    assert_eq!(engine.boundary(), model.boundary);
    assert_eq!(engine.epoch(), model.epoch);
    for (version, id) in &model.decided {
        let expected = if *version < model.boundary { None } else { Some(model.entries[id].state) };
        assert_eq!(engine.decided_at(*version).ok(), expected);
    }
    let info = |entry: &Entry| StagedInfo {
        stamp: entry.stamp,
        prepare_id: entry.prepare_id,
        base: model.entries[&entry.base.expect("a stage has a base")].state,
        state: entry.state,
    };
    assert_eq!(engine.staged(), model.staged().map(|entry| info(entry)).collect::<Vec<_>>());
    check_journals(engine, model);
    for entry in model.entries.values() {
        assert!(engine.has(&entry.state).expect("readable"));
        let shape = engine.shape(&entry.state).expect("it is here");
        assert_eq!(shape.entries, entry.forest.entries());
        for merge in shape.ready {
            let at = entry.forest.find(&merge.inputs).expect("what is ready stands in the forest");
            assert_eq!(entry.forest.merge(at, merge.inputs.len()).frozen()[at], merge.output);
        }
    }
}

/// Compares the journals of all versions that were decided and not rolled back, pruned ones
/// included.
fn check_journals(engine: &Engine, model: &Model) {
    let kept = |from, bytes_max| {
        let journals =
            engine.journals(&model.tip().state, from, Version(u64::MAX), bytes_max).expect("they can be read");
        journals.into_iter().map(|it| (it.version, it.bytes)).collect::<Vec<_>>()
    };
    let expected: Vec<(Version, Vec<u8>)> = model.journals.clone().into_iter().collect();
    assert_eq!(kept(Version(0), usize::MAX), expected);
    assert_eq!(kept(Version(0), 0), expected[..expected.len().min(1)], "at least one, however small the page");
    // A staged state shows the journals of its base line, but not its siblings'.
    for entry in model.staged().filter(|_| model.params.journals_kept) {
        let journals = engine.journals(&entry.state, entry.state.version, entry.state.version, usize::MAX);
        let journals = journals.expect("they can be read");
        // If two staged versions share a name, it refers to the newer one.
        let twin = model.find(&entry.state).expect("it is staged");
        assert_eq!(journals.len(), 1);
        assert_eq!(journals[0].bytes, journal_of(twin.stamp, twin.prepare_id));
    }
}

/// States and versions that do not exist are refused.
pub fn check_refusals(engine: &Engine, model: &Model) {
    let mut nowhere = model.tip().state;
    nowhere.digest = Digest([9; 32]);
    assert!(!engine.has(&nowhere).expect("readable"));
    assert_eq!(engine.view(&nowhere).map(|_| ()).map_err(|error| error.reason()), Err(Reason::StateMissing));
    if let Some(below) = model.boundary.0.checked_sub(1) {
        let refused = engine.view_at(coppice_types::Version(below)).map(|_| ());
        assert!(matches!(refused, Err(Error::Pruned { boundary }) if boundary == model.boundary));
    }
}

/// Compares all records of all versions.
pub fn check_all(engine: &Engine, model: &Model) {
    check_names(engine, model);
    check_refusals(engine, model);
    for entry in model.entries.values() {
        let view = engine.view(&entry.state).expect("it is here");
        let page = view.range(&[], None, usize::MAX, true).expect("reads");
        assert!(!page.more);
        assert_records(model, &page.records, entry.live.iter());
    }
}

/// Compares a few reads and proofs of a few versions.
pub fn check_some(engine: &Engine, model: &Model, generator: &mut Generator) {
    let entry = generator.any_entry(model);
    let view = engine.view(&entry.state).expect("it is here");
    assert_eq!((view.state(), view.stamp()), (entry.state, entry.stamp));
    let low = generator.any_key();
    let high = Some(generator.any_key()).filter(|high| generator.rng.chance(800) && *high > low);
    check_gets(&view, model, &entry, generator);
    check_range(&view, model, &entry, generator, (&low, high.as_deref()));
    check_key_proof(&view, &entry, generator);
    check_range_proof(&view, &entry, &low, high.as_deref());
    check_history(&view, model, &entry, generator);
    check_diff(engine, model, &entry, generator, &low, high.as_deref());
    check_merge(engine, model, &entry, generator, &low, high.as_deref());
    check_footprint(engine, model, &entry);
}

fn assert_record(model: &Model, record: &Record, key: &[u8], live: &Live, valued: bool) {
    let erased = model.erased.contains_key(key);
    assert_eq!((record.key.as_slice(), record.stamp), (key, live.stamp));
    assert_eq!(record.value_len as usize, live.value.len());
    assert_eq!(record.value_hash(), hash::sha256(&live.value));
    assert_eq!(record.erased, erased, "{key:?}");
    assert_eq!(record.value.as_deref(), (valued && !erased).then_some(&*live.value), "{key:?}");
}

fn assert_records<'m>(model: &Model, records: &[Record], live: impl Iterator<Item = (&'m Vec<u8>, &'m Live)>) {
    let live: Vec<_> = live.collect();
    let keys: Vec<&Vec<u8>> = records.iter().map(|record| &record.key).collect();
    assert_eq!(keys, live.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    records.iter().zip(live).for_each(|(record, (key, live))| assert_record(model, record, key, live, true));
}

fn check_gets(view: &View<'_>, model: &Model, entry: &Entry, generator: &mut Generator) {
    for _ in 0..4 {
        let key = generator.any_key();
        let valued = generator.rng.chance(500);
        let found = view.get(&key, valued).expect("reads");
        assert_eq!(found.is_some(), entry.live.contains_key(&key), "key {key:?}");
        if let Some(record) = found {
            assert_record(model, &record, &key, &entry.live[&key], valued);
        }
    }
}

/// Live records of a range.
fn live_in<'m>(
    entry: &'m Entry,
    low: &[u8],
    high: Option<&[u8]>,
) -> impl Iterator<Item = (&'m Vec<u8>, &'m Live)> + 'm {
    let high = high.map(<[u8]>::to_vec);
    entry.live.range(low.to_vec()..).take_while(move |(key, _)| high.as_ref().is_none_or(|high| *key < high))
}

fn check_range(
    view: &View<'_>,
    model: &Model,
    entry: &Entry,
    generator: &mut Generator,
    (low, high): (&[u8], Option<&[u8]>),
) {
    let limit = [0, 1, 3, 1000][pick(&mut generator.rng, 4)];
    let page = view.range(low, high, limit, true).expect("reads");
    let expected: Vec<_> = live_in(entry, low, high).collect();
    assert_eq!(page.more, expected.len() > limit);
    assert_records(model, &page.records, expected.into_iter().take(limit));
    let inverted = view.range(low, Some(low), 10, true).expect("an empty range is read as empty");
    assert!(inverted.records.is_empty() && !inverted.more);
}

fn check_key_proof(view: &View<'_>, entry: &Entry, generator: &mut Generator) {
    let count = [1, 1, 2, 5, 20][pick(&mut generator.rng, 5)];
    let keys: BTreeSet<Vec<u8>> = (0..count).map(|_| generator.any_key()).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let bytes = view.prove_keys(&asked).expect("proves");
    assert_eq!(bytes, entry.forest.prove_keys(&asked));
    let query = Query::Keys(asked.iter().map(|key| Cow::Borrowed(*key)).collect());
    let list = TreeList::decode(&bytes).expect("decodes");
    let answer = verify_trees(list, &entry.state.digest, entry.stamp, &query).expect("verifies");
    let Answer::Keys(answers) = answer else { panic!("keys were asked") };
    assert_eq!(answers.len(), keys.len());
    for ((key, found), asked) in answers.iter().zip(&keys) {
        assert_eq!(**key, **asked);
        let found = found.as_ref().map(|record| (record.stamp, record.value_hash));
        let live = entry.live.get(asked).map(|live| (live.stamp, hash::sha256(&live.value)));
        assert_eq!(found, live, "proof of {asked:?}");
    }
}

fn check_range_proof(view: &View<'_>, entry: &Entry, low: &[u8], high: Option<&[u8]>) {
    let bytes = view.prove_range(low, high).expect("proves");
    assert_eq!(bytes, entry.forest.prove_range(low, high));
    let query = Query::Range { low: Cow::Borrowed(low), high: high.map(Cow::Borrowed) };
    let list = TreeList::decode(&bytes).expect("decodes");
    let answer = verify_trees(list, &entry.state.digest, entry.stamp, &query).expect("verifies");
    let Answer::Range { records, .. } = answer else { panic!("a range was asked") };
    let found: Vec<_> = records.iter().map(|record| (record.key.to_vec(), record.stamp, record.value_hash)).collect();
    let live = live_in(entry, low, high).map(|(key, live)| (key.clone(), live.stamp, hash::sha256(&live.value)));
    assert_eq!(found, live.collect::<Vec<_>>());
}

/// Expected changes of a key on the line of a version: the change of each version, and the value in
/// the oldest retained one.
fn history_of(model: &Model, entry: &Entry, key: &[u8]) -> Vec<(coppice_types::Stamp, Option<Live>)> {
    let line = model.line(entry);
    let mut changes = Vec::new();
    for pair in line.windows(2) {
        let (after, before) = (pair[0].live.get(key), pair[1].live.get(key));
        if after != before {
            changes.push((pair[0].stamp, after.cloned()));
        }
    }
    let oldest = line.last().and_then(|oldest| oldest.live.get(key));
    changes.extend(oldest.map(|live| (live.stamp, Some(live.clone()))));
    changes
}

fn check_history(view: &View<'_>, model: &Model, entry: &Entry, generator: &mut Generator) {
    let key = generator.any_key();
    let mut expected = history_of(model, entry, &key);
    let page = view.history(&key, usize::MAX).expect("reads");
    assert!(!page.more);
    let mut found = page.changes;
    // A tombstone from before the oldest version may still be there.
    if found.len() == expected.len() + 1 && found.last().is_some_and(|oldest| oldest.record.is_none()) {
        let oldest = found.pop().expect("it was counted");
        assert!(oldest.stamp <= model.line(entry).last().expect("at least itself").stamp);
    }
    assert_changes(model, &found, &expected, &key);
    let limit = pick(&mut generator.rng, expected.len() + 1);
    let page = view.history(&key, limit).expect("reads");
    expected.truncate(limit);
    assert_changes(model, &page.changes, &expected, &key);
}

fn assert_changes(model: &Model, found: &[KeyChange], expected: &[(coppice_types::Stamp, Option<Live>)], key: &[u8]) {
    let stamps = |changes: &[KeyChange]| -> Vec<_> {
        changes.iter().map(|change| (change.stamp, change.record.is_some())).collect()
    };
    let wanted: Vec<_> = expected.iter().map(|(stamp, live)| (*stamp, live.is_some())).collect();
    assert_eq!(stamps(found), wanted, "history of {key:?}");
    for (change, (_, live)) in found.iter().zip(expected) {
        if let (Some(record), Some(live)) = (&change.record, live) {
            assert_record(model, record, key, live, true);
        }
    }
}

fn check_diff(
    engine: &Engine,
    model: &Model,
    entry: &Entry,
    generator: &mut Generator,
    low: &[u8],
    high: Option<&[u8]>,
) {
    let after = engine.view(&entry.state).expect("it is here");
    let other = generator.any_entry(model);
    let before = engine.view(&other.state).expect("it is here");
    let diff = after.diff(&before, low, high);
    if model.line(entry).iter().all(|ancestor| ancestor.id != other.id) {
        assert!(matches!(diff, Err(Error::NotAncestor { .. })), "{:?} is not an ancestor", other.stamp);
        return;
    }
    let diff = diff.expect("reads");
    let (old, new): (Vec<_>, Vec<_>) = (live_in(&other, low, high).collect(), live_in(entry, low, high).collect());
    let keys: BTreeSet<&Vec<u8>> = old.iter().chain(&new).map(|(key, _)| *key).collect();
    let changed =
        |key: &&&Vec<u8>| other.live.get(**key).map(|live| live.stamp) != entry.live.get(**key).map(|live| live.stamp);
    let changed: Vec<&&Vec<u8>> = keys.iter().filter(changed).collect();
    assert_eq!(diff.len(), changed.len(), "diff of {:?} and {:?}", other.stamp, entry.stamp);
    for ((before, after), key) in diff.iter().zip(changed) {
        assert_side(model, before.as_ref(), key, other.live.get(*key));
        assert_side(model, after.as_ref(), key, entry.live.get(*key));
    }
}

fn assert_side(model: &Model, record: Option<&Record>, key: &[u8], live: Option<&Live>) {
    match (record, live) {
        (None, None) => {}
        (Some(record), Some(live)) => assert_record(model, record, key, live, true),
        _ => panic!("diff of {key:?}: {record:?}, not {live:?}"),
    }
}

/// Merges the changes between two versions into a third one, in parts of a few keys.
fn check_merge(
    engine: &Engine,
    model: &Model,
    entry: &Entry,
    generator: &mut Generator,
    low: &[u8],
    high: Option<&[u8]>,
) {
    let (base, right) = (generator.any_entry(model), generator.any_entry(model));
    let view = |entry: &Entry| engine.view(&entry.state).expect("it is here");
    let limit = [1, 2, 5, 1000][pick(&mut generator.rng, 4)];
    let (mut taken, mut conflicts, mut from) = (Vec::new(), Vec::new(), Some(low.to_vec()));
    while let Some(low) = from {
        let page = view(entry).merge(&view(&base), &view(&right), &low, high, limit);
        let descends = |newer: &Entry, older: &Entry| model.line(newer).iter().any(|entry| entry.id == older.id);
        if !descends(&right, &base) && !descends(&base, &right) {
            assert!(matches!(page, Err(Error::NotAncestor { .. })), "{:?} and {:?}", base.stamp, right.stamp);
            return;
        }
        let page = page.expect("reads");
        assert!(page.taken.len() + page.conflicts.len() <= limit);
        assert!(page.next.as_ref().is_none_or(|next| *next > low), "each part goes on");
        taken.extend(page.taken);
        conflicts.extend(page.conflicts);
        from = page.next;
    }
    let sides = [&base, entry, &right];
    let keys: BTreeSet<&Vec<u8>> = sides.iter().flat_map(|side| live_in(side, low, high)).map(|(key, _)| key).collect();
    let (mut expected_taken, mut expected_conflicts) = (Vec::new(), Vec::new());
    for key in keys {
        let [was, ours, theirs] = sides.map(|side| side.live.get(key).map(|live| &live.value));
        if was == theirs || ours == theirs {
            continue;
        }
        if ours == was && theirs.is_some() && model.erased.contains_key(key) {
            continue;
        }
        if ours == was {
            let change = theirs.map_or(Change::Delete, |value| Change::Put(value.to_vec().into()));
            expected_taken.push(Operation { key: key.clone().into(), change });
        } else {
            expected_conflicts.push(key);
        }
    }
    assert_eq!(taken, expected_taken);
    assert_eq!(conflicts.iter().map(|conflict| &conflict.key).collect::<Vec<_>>(), expected_conflicts);
    for Conflict { key, base: was, left, right: theirs } in &conflicts {
        for (record, side) in [was, left, theirs].into_iter().zip(sides) {
            let live = side.live.get(key);
            assert_eq!(record.is_some(), live.is_some());
            if let (Some(record), Some(live)) = (record, live) {
                assert_record(model, record, key, live, false);
            }
        }
    }
}

/// Checks that the footprint reaches all live values and no others.
fn check_footprint(engine: &Engine, model: &Model, entry: &Entry) {
    let footprint = engine.view(&entry.state).expect("it is here").footprint().expect("reads");
    let records: u64 = entry.forest.entries().iter().sum();
    assert_eq!(footprint.spans.is_empty(), records == 0);
    let stored = |live: &&Live| live.value.len() > model.params.inline_bytes as usize;
    let live: usize = entry.live.values().filter(stored).map(|live| live.value.len()).sum();
    let reached: u64 = footprint.values.values().sum();
    let usage = engine.disk_usage().expect("asks");
    assert!((live as u64..=usage.value_live_bytes).contains(&reached), "{reached} bytes of values, {live} are live");
}

/// A generator with separate random numbers for reads, so that commands do not depend on the reads.
pub fn reader(rng: &mut SimRng, generator: &Generator) -> Generator {
    generator.with_rng(SimRng::new(rng.next_u64()))
}
