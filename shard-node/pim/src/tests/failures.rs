//! Damaged memories and dead DPUs: every query still gets the engine's proof.

use std::collections::BTreeSet;

use coppice_engine::ShardState;
use coppice_env::{Rng, SimRng};
use coppice_types::Params;

use crate::{
    Reader,
    testing::{Ledger, asked_keys, compare, eager, emulated, pick, put, reader},
};

fn key(number: u32) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

fn ledger(keys: u32) -> (Ledger, ShardState, Vec<Vec<u8>>) {
    let params = Params { key_bytes_max: 16, node_bytes: 512, fanout: 6, ..Params::default() };
    let mut ledger = Ledger::new(params);
    let state = ledger.commit((0..keys).map(|number| put(&key(2 * number), 1)).collect());
    let keys: BTreeSet<_> = (0..keys).map(|number| key(2 * number)).collect();
    (ledger, state, asked_keys(&keys))
}

fn loaded(ledger: &Ledger, state: &ShardState, dpus: u32) -> Reader {
    let mut reader = reader(emulated(dpus, "dpusPerRank=2"), eager(1));
    reader.insert(&ledger.engine.view(state).expect("retained")).expect("sound pages");
    reader.publish();
    reader
}

/// The used bytes of the first DPU's pages.
fn pages(reader: &Reader) -> (u32, u32) {
    let at = 1024 * (8 + 128 + 2048);
    let end = reader.image().pages_end(0).expect("the DPU has pages");
    (at, end)
}

#[test]
fn every_damaged_byte_of_the_pages_is_caught_or_harmless() {
    let (ledger, state, keys) = ledger(12);
    let (start, end) = pages(&loaded(&ledger, &state, 1));
    let mut caught = 0;
    for at in (start..end).step_by(3) {
        let mut reader = loaded(&ledger, &state, 1);
        let word = at / 8 * 8;
        let mut bytes =
            reader.dpus_mut().expect("it has DPUs").pull(word, 8, &[true]).expect("pages")[0].clone().expect("chosen");
        bytes[(at - word) as usize] ^= 0x21;
        reader.dpus_mut().expect("it has DPUs").write(0, word, &bytes).expect("it is a word of the memory");
        compare(&mut reader, &ledger, &[state], &keys);
        caught += u32::from(reader.counts().dpus_out == 1);
    }
    // Padding, and bytes of tables that no key here needs, are harmless.
    assert!(caught > (end - start) / 6, "{caught} of {}", end - start);
}

#[test]
fn pages_that_change_places_are_caught() {
    let (ledger, state, keys) = ledger(60);
    let mut rng = SimRng::new(3);
    let (start, end) = pages(&loaded(&ledger, &state, 1));
    let mut caught = 0;
    for _ in 0..60 {
        let mut reader = loaded(&ledger, &state, 1);
        let len = 8 * (1 + pick(&mut rng, 40));
        let place = |rng: &mut SimRng| start + 8 * rng.below(u64::from(end - start) / 8 - len as u64 / 8) as u32;
        let (from, to) = (place(&mut rng), place(&mut rng));
        let bytes = reader.dpus_mut().expect("it has DPUs").pull(from, len, &[true]).expect("pages")[0]
            .clone()
            .expect("chosen");
        reader.dpus_mut().expect("it has DPUs").write(0, to, &bytes).expect("it is in the memory");
        compare(&mut reader, &ledger, &[state], &keys);
        caught += u32::from(reader.counts().dpus_out == 1);
    }
    assert!(caught > 30, "{caught}");
}

#[test]
fn a_dpu_that_dies_within_a_batch_is_taken_out_and_the_host_answers() {
    let (ledger, state, keys) = ledger(200);
    for transfers in [1, 2, 30, 1000] {
        let mut reader = loaded(&ledger, &state, 4);
        compare(&mut reader, &ledger, &[state], &keys);
        assert_eq!(reader.counts().dpus_out, 0);
        reader.dpus_mut().expect("it has DPUs").kill_after(2, transfers);
        let before = reader.counts();
        compare(&mut reader, &ledger, &[state], &keys);
        let after = reader.counts();
        assert_eq!(after.dpus_out, 1, "after {transfers} transfers");
        let asked = after.lookups - before.lookups;
        let answered = after.pim_lookups - before.pim_lookups;
        assert!(0 < answered && answered < asked, "{answered} of {asked}: the other DPUs go on");
        compare(&mut reader, &ledger, &[state], &keys);
        assert_eq!(reader.counts().dpus_out, 1);
    }
}

#[test]
fn without_any_sound_dpu_the_host_answers_all() {
    let (mut ledger, state, keys) = ledger(100);
    let mut reader = loaded(&ledger, &state, 3);
    (0..3).for_each(|dpu| reader.dpus_mut().expect("it has DPUs").kill_after(dpu, 1));
    compare(&mut reader, &ledger, &[state], &keys);
    assert_eq!((reader.counts().dpus_out, reader.counts().pim_lookups), (3, 0));
    // Nothing more is placed there, and later versions are served.
    let later = ledger.commit(vec![put(&key(7), 2)]);
    reader.insert(&ledger.engine.view(&later).expect("retained")).expect("sound pages");
    reader.publish();
    compare(&mut reader, &ledger, &[state, later], &keys);
    let mut alone = Reader::new(None, eager(1), Box::new(SimRng::new(1))).expect("sound options");
    alone.insert(&ledger.engine.view(&later).expect("retained")).expect("sound pages");
    alone.publish();
    compare(&mut alone, &ledger, &[later], &keys);
}

#[test]
fn damage_that_fits_its_checks_is_found_by_hashing_samples() {
    let (ledger, state, keys) = ledger(60);
    let mut reader = loaded(&ledger, &state, 1);
    // Another node's pages with sound checks, as a bug of the writer would leave them.
    for (at, bytes) in reader.image().forged(0) {
        reader.dpus_mut().expect("it has DPUs").write(0, at, &bytes).expect("it is in the memory");
    }
    let queries: Vec<_> = keys.iter().map(|key| crate::Query { state, key: key.clone() }).collect();
    // One of the batch's answers is hashed; each is wrong.
    let answers = reader.answer(&queries);
    assert_eq!(reader.counts().dpus_out, 1);
    for (query, answer) in queries.iter().zip(answers) {
        assert_eq!(answer.expect("it is served"), ledger.proof(query));
    }
}
