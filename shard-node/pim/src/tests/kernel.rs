//! The kernel's answers against the engine's proofs, on random trees and versions.

use std::collections::BTreeSet;

use coppice_env::{Rng, SimRng};

use crate::{
    ImageOptions, Options,
    testing::{Ledger, asked_keys, compare, delete, eager, emulated, pick, put, reader, some_key, some_params},
};

#[test]
fn every_proof_has_the_bytes_of_the_engines() {
    let (mut pim_lookups, mut overflows) = (0, 0);
    for seed in 0..24 {
        println!("seed {seed}");
        let mut rng = SimRng::new(seed);
        let params = some_params(&mut rng);
        let mut ledger = Ledger::new(params.clone());
        let result_bytes = [2048, 2048, 400][(seed % 3) as usize];
        let options = Options { result_bytes, ..eager((seed % 4) as u8) };
        let mut reader = reader(emulated(3, "dpusPerRank=2"), options);
        let mut keys = BTreeSet::new();
        let mut states = vec![ledger.engine.decided()];
        for version in 1..8 {
            let put_some = |rng: &mut SimRng| {
                let key = some_key(rng, params.key_bytes_max as usize);
                if rng.chance(150) { delete(&key) } else { put(&key, version) }
            };
            let operations: Vec<_> = (0..1 + pick(&mut rng, 120)).map(|_| put_some(&mut rng)).collect();
            keys.extend(operations.iter().map(|operation| operation.key.to_vec()));
            states.push(ledger.commit(operations));
            if rng.chance(600) {
                ledger.merge();
            }
        }
        for state in &states {
            reader.insert(&ledger.engine.view(state).expect("retained")).expect("sound pages");
        }
        reader.publish();
        compare(&mut reader, &ledger, &states, &asked_keys(&keys));
        assert_eq!(reader.counts().dpus_out, 0, "every answer passed its checks");
        pim_lookups += reader.counts().pim_lookups;
        overflows += reader.counts().overflows;
    }
    assert!(pim_lookups > 20_000, "{pim_lookups}");
    assert!(overflows > 0, "answers of several levels exceed a short result");
}

#[test]
fn one_and_sixteen_tasklets_leave_the_same_bytes() {
    let mut rng = SimRng::new(1);
    let mut ledger = Ledger::new(some_params(&mut rng));
    let keys: BTreeSet<_> = (0..200).map(|_| some_key(&mut rng, 16)).collect();
    let state = ledger.commit(keys.iter().map(|key| put(key, 1)).collect());
    let results = ["tasklets=1", "tasklets=3", "tasklets=16"].map(|profile| {
        let mut reader = reader(emulated(2, profile), eager(1));
        reader.insert(&ledger.engine.view(&state).expect("retained")).expect("sound pages");
        reader.publish();
        let asked: Vec<_> = asked_keys(&keys).into_iter().take(300).collect();
        compare(&mut reader, &ledger, &[state], &asked);
        assert!(reader.counts().pim_lookups >= 300);
        let at = 1024 * (8 + 128);
        reader.dpus_mut().expect("it has DPUs").pull(at, 300 * 2048, &[true, true]).expect("results")
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn keys_that_differ_only_behind_their_first_words_are_told_apart() {
    let mut ledger = Ledger::new(coppice_types::Params::default());
    let beginning = b"the same beginning of thirty-two bytes, then more: xxxxxxxxx";
    let key = |number: u32| [&beginning[..], &number.to_be_bytes()].concat();
    let keys: BTreeSet<_> = (0..90).map(|number| key(2 * number)).collect();
    let state = ledger.commit(keys.iter().map(|key| put(key, 1)).collect());
    let mut reader = reader(emulated(1, ""), eager(1));
    reader.insert(&ledger.engine.view(&state).expect("retained")).expect("sound pages");
    reader.publish();
    compare(&mut reader, &ledger, &[state], &asked_keys(&keys));
    assert!(reader.counts().pim_lookups > 200 && reader.counts().dpus_out == 0, "{:?}", reader.counts());
}

#[test]
fn equal_queries_and_shared_subtrees_are_looked_up_once() {
    let mut ledger = Ledger::new(coppice_types::Params::default());
    let key = |number: u32| format!("{number:06}").into_bytes();
    let first = ledger.commit((0..2000).map(|number| put(&key(number), 1)).collect());
    let second = ledger.commit(vec![put(&key(0), 2)]);
    let mut reader = reader(emulated(4, ""), eager(0));
    for state in [first, second] {
        reader.insert(&ledger.engine.view(&state).expect("retained")).expect("sound pages");
    }
    reader.publish();
    // Far from the changed leaf, both versions have the same one.
    compare(&mut reader, &ledger, &[first, second, first], &[key(1000), key(1000), key(1999)]);
    assert_eq!((reader.counts().queries, reader.counts().lookups), (9, 2));
    compare(&mut reader, &ledger, &[first, second], &[key(0)]);
    assert_eq!(reader.counts().lookups, 4);
}

#[test]
fn a_batch_that_is_not_worth_a_launch_is_the_hosts() {
    let mut ledger = Ledger::new(coppice_types::Params::default());
    let key = |number: u32| format!("{number:06}").into_bytes();
    let state = ledger.commit((0..4000).map(|number| put(&key(number), 1)).collect());
    let calibration = crate::Calibration { host_lookup_s: 2e-6, ..crate::Calibration::default() };
    let options = Options { small_batches_on_host: true, result_bytes: 1024, calibration, ..eager(0) };
    let mut reader = reader(emulated(8, ""), options);
    reader.insert(&ledger.engine.view(&state).expect("retained")).expect("sound pages");
    reader.publish();
    compare(&mut reader, &ledger, &[state], &(0..100).map(key).collect::<Vec<_>>());
    assert_eq!((reader.counts().lookups, reader.counts().pim_lookups), (100, 0));
    let queries: Vec<_> = (0..4000).map(|number| crate::Query { state, key: key(number) }).collect();
    assert!(reader.answer(&queries).iter().all(Result::is_ok));
    assert_eq!((reader.counts().lookups, reader.counts().pim_lookups), (4100, 4000));
}

#[test]
fn only_published_versions_are_served() {
    let mut ledger = Ledger::new(coppice_types::Params::default());
    let states = [1, 2].map(|value| ledger.commit(vec![put(b"a", value)]));
    let image = ImageOptions { entries_min: 0, ..ImageOptions::default() };
    let mut reader = reader(emulated(1, ""), Options { image, ..eager(0) });
    let query = |state| [crate::Query { state, key: b"a".to_vec() }];
    reader.insert(&ledger.engine.view(&states[1]).expect("retained")).expect("sound pages");
    assert!(matches!(reader.answer(&query(states[1]))[..], [Err(crate::Error::NotServed { oldest: None })]));
    reader.publish();
    assert!(reader.answer(&query(states[1]))[0].is_ok());
    let oldest = Some(states[1].version);
    let refused = reader.answer(&query(states[0]));
    assert!(matches!(refused[..], [Err(crate::Error::NotServed { oldest: found })] if found == oldest));
    // A state of another line with the same number is another state.
    let other = coppice_engine::ShardState { digest: coppice_types::Digest([9; 32]), ..states[1] };
    assert!(matches!(reader.answer(&query(other))[..], [Err(crate::Error::NotServed { .. })]));
}
