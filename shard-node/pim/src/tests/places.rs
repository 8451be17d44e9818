//! Where pages lie: none is lost, none is there twice, and versions share what they have in common.

use std::collections::BTreeSet;

use coppice_engine::ShardState;
use coppice_env::{Rng, SimRng};
use coppice_types::{Params, Version};

use crate::{
    Error, ImageOptions, Options, Reader,
    testing::{Ledger, asked_keys, compare, delete, eager, emulated, pick, put, reader, some_key, some_params},
};

fn check(reader: &mut Reader) {
    let dpus = std::cell::RefCell::new(reader.take_dpus());
    reader.image().check(Some(&|dpu, at, bytes| {
        let mut dpus = dpus.borrow_mut();
        let chosen: Vec<bool> = (0..dpus.count()).map(|other| other == dpu).collect();
        dpus.pull(at, bytes, &chosen).expect("pages")[dpu].clone().expect("chosen")
    }));
    reader.give_dpus(dpus.into_inner());
}

fn insert(reader: &mut Reader, ledger: &Ledger, state: &ShardState) {
    reader.insert(&ledger.engine.view(state).expect("retained")).expect("sound pages");
}

#[test]
fn no_page_is_lost_or_doubled_by_versions_prunes_and_rollbacks() {
    let mut unplaced = 0;
    for seed in 0..30 {
        println!("seed {seed}");
        let mut rng = SimRng::new(1000 + seed);
        let params = some_params(&mut rng);
        let mut ledger = Ledger::new(params.clone());
        let queues = 1024 * (8 + 128 + 2048);
        // Memories that some of the versions fill.
        let mram_bytes = queues + [6_000, 20_000, 1 << 20][pick(&mut rng, 3)];
        let image = ImageOptions {
            cut_level: rng.below(4) as u8,
            entries_min: [1, 10, 60][pick(&mut rng, 3)],
            versions_max: 1 + pick(&mut rng, 6),
            ..ImageOptions::default()
        };
        let mut reader = reader(emulated(3, ""), Options { image, mram_bytes, ..eager(0) });
        let mut keys = BTreeSet::new();
        for version in 1..40 {
            let operation = |rng: &mut SimRng| {
                let key = some_key(rng, params.key_bytes_max as usize);
                if rng.chance(200) { delete(&key) } else { put(&key, version) }
            };
            let operations: Vec<_> = (0..1 + pick(&mut rng, 25)).map(|_| operation(&mut rng)).collect();
            keys.extend(operations.iter().map(|operation| operation.key.to_vec()));
            let state = ledger.commit(operations);
            insert(&mut reader, &ledger, &state);
            reader.image().check(None);
            match rng.below(10) {
                0 => ledger.merge(),
                1 => reader.prune(Version(state.version.0.saturating_sub(rng.below(4)))),
                2 => {
                    let to = Version(state.version.0 - rng.below(3).min(state.version.0));
                    reader.roll_back(to);
                    ledger.roll_back(to);
                }
                3..6 => reader.publish(),
                _ => {}
            }
            reader.image().check(None);
        }
        reader.publish();
        check(&mut reader);
        let versions = reader.image().versions();
        unplaced += reader.image().units().values().filter(|unit| unit.at.is_none()).count();
        let states: Vec<_> = versions.iter().filter_map(|version| ledger.engine.decided_at(*version).ok()).collect();
        let keys: Vec<_> = asked_keys(&keys).into_iter().step_by(7).collect();
        compare(&mut reader, &ledger, &states, &keys);
        reader.prune(Version(u64::MAX));
        check(&mut reader);
        assert_eq!(reader.image().pages(), [0; 3], "all versions are gone, and their pages");
        assert!(reader.image().units().is_empty());
    }
    assert!(unplaced > 0, "small memories are full");
}

#[test]
fn a_new_version_shares_the_pages_of_the_one_before() {
    let mut ledger = Ledger::new(Params { key_bytes_max: 16, node_bytes: 512, fanout: 6, ..Params::default() });
    let key = |number: u32| format!("{number:06}").into_bytes();
    let first = ledger.commit((0..3000).map(|number| put(&key(number), 1)).collect());
    let mut reader = reader(emulated(5, ""), eager(2));
    insert(&mut reader, &ledger, &first);
    reader.publish();
    let whole = reader.counts().refreshed_bytes;
    let before = reader.image().units().clone();
    assert!(before.len() >= 10, "{}", before.len());
    let second = ledger.commit(vec![put(&key(1500), 2)]);
    insert(&mut reader, &ledger, &second);
    reader.publish();
    check(&mut reader);
    let changed: Vec<_> = reader.image().units().iter().filter(|(hash, _)| !before.contains_key(*hash)).collect();
    // Its neighbour may be packed anew with it.
    assert!((1..=3).contains(&changed.len()), "{} subtrees have changed", changed.len());
    // Each lies where pages of it are already.
    let dpu = |unit: &crate::image::Unit| unit.at.map(|(dpu, _)| dpu);
    let children = |hash: &coppice_types::Digest| reader.image().children(hash).into_iter().collect::<BTreeSet<_>>();
    for (hash, unit) in changed {
        let shares = |old: &coppice_types::Digest| !children(old).is_disjoint(&children(hash));
        assert!(before.iter().any(|(old, there)| dpu(there) == dpu(unit) && shares(old)));
    }
    let delta = reader.counts().refreshed_bytes - whole;
    assert!(delta * 30 < whole, "{delta} of {whole} bytes");
}

#[test]
fn the_first_load_fills_the_dpus_evenly() {
    let mut ledger = Ledger::new(Params { key_bytes_max: 16, node_bytes: 512, fanout: 6, ..Params::default() });
    let key = |number: u32| format!("{number:06}").into_bytes();
    let state = ledger.commit((0..5000).map(|number| put(&key(number), 1)).collect());
    for cut_level in 0..3 {
        let mut reader = reader(emulated(8, ""), eager(cut_level));
        insert(&mut reader, &ledger, &state);
        let pages = reader.image().pages();
        let (least, most) = (pages.iter().min().copied(), pages.iter().max().copied());
        let (Some(least), Some(most)) = (least, most) else { panic!("there are DPUs") };
        assert!(least * 100 >= most * 85, "cut {cut_level}: {pages:?}");
    }
}

#[test]
fn a_version_that_exceeds_the_hosts_bound_changes_nothing() {
    let mut ledger = Ledger::new(Params::default());
    let key = |number: u32| format!("{number:06}").into_bytes();
    let small = ledger.commit((0..200).map(|number| put(&key(number), 1)).collect());
    let large = ledger.commit((0..20_000).map(|number| put(&key(number), 2)).collect());
    let image = ImageOptions { nodes_max: 50, entries_min: 1, ..ImageOptions::default() };
    let mut reader = reader(emulated(2, ""), Options { image, ..eager(0) });
    insert(&mut reader, &ledger, &small);
    reader.publish();
    let refused = reader.insert(&ledger.engine.view(&large).expect("retained"));
    assert!(matches!(refused, Err(Error::TooLarge)));
    check(&mut reader);
    compare(&mut reader, &ledger, &[small], &[key(7), key(200)]);
}

#[test]
fn a_rolled_back_version_gives_its_number_to_another() {
    let mut ledger = Ledger::new(Params::default());
    let first = ledger.commit(vec![put(b"a", 1)]);
    let wrong = ledger.commit(vec![put(b"a", 2)]);
    let mut reader = reader(emulated(2, ""), eager(0));
    [first, wrong].iter().for_each(|state| insert(&mut reader, &ledger, state));
    reader.publish();
    ledger.roll_back(first.version);
    let right = ledger.commit(vec![put(b"a", 3)]);
    // The reader was not told of the rollback: the newer version takes the place.
    insert(&mut reader, &ledger, &right);
    reader.publish();
    check(&mut reader);
    compare(&mut reader, &ledger, &[first, right], &[b"a".to_vec(), b"b".to_vec()]);
    let gone = reader.answer(&[crate::Query { state: wrong, key: b"a".to_vec() }]);
    assert!(matches!(gone[..], [Err(Error::NotServed { .. })]));
}

#[test]
fn a_version_that_is_read_in_parts_survives_what_is_dropped_meanwhile() {
    let mut ledger = Ledger::new(Params { key_bytes_max: 16, node_bytes: 512, fanout: 6, ..Params::default() });
    let key = |number: u32| format!("{number:06}").into_bytes();
    let first = ledger.commit((0..500).map(|number| put(&key(number), 1)).collect());
    let second = ledger.commit(vec![put(&key(7), 2)]);
    let mut reader = reader(emulated(3, ""), eager(1));
    insert(&mut reader, &ledger, &first);
    reader.publish();
    let view = ledger.engine.view(&second).expect("retained");
    let mut loading = reader.begin(&view).expect("it is new");
    assert_eq!(loading.state(), second);
    let stranger = ledger.engine.view(&first).expect("retained");
    assert!(matches!(reader.read_part(&mut loading, &stranger, 1), Err(Error::Mismatch(_))));
    // What is shared with the first version is not read; then that version goes.
    let mut parts = 0;
    while !reader.read_part(&mut loading, &view, 1).expect("sound pages") {
        parts += 1;
    }
    assert!((1..40).contains(&parts), "only what changed is read: {parts}");
    reader.keep(|state| *state != first);
    assert_eq!((reader.states().count(), reader.nodes()), (0, 0));
    assert!(!reader.finish(loading), "its shared nodes are gone");
    let mut loading = reader.begin(&view).expect("it is not here");
    reader.prune(Version(9));
    while !reader.read_part(&mut loading, &view, 3).expect("sound pages") {}
    assert!(reader.finish(loading) && reader.begin(&view).is_none());
    reader.publish();
    check(&mut reader);
    assert_eq!(reader.states().collect::<Vec<_>>(), [second]);
    compare(&mut reader, &ledger, &[second], &[key(7), key(8), key(9999)]);
    assert_eq!((reader.dpus(), reader.break_even()), ((3, 3), Some(1)));
}
