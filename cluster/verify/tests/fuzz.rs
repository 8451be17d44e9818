//! The fuzz bodies, fed for a few seconds with mutations of valid encodings. The mutations are the
//! same in each run.

mod common;

use common::{
    Sample,
    attacks::targets,
    grain::{NAMES, World, clue, member},
};
use coppice_types::{Change, Operation, Params, Stamp, codec::Writer};
use coppice_verify::{
    cosignature::Cosigner,
    fuzz::BODIES,
    journal::Entry,
    ledgers::{head_key, member_key},
    proof::Proof,
    replay::Shown,
};

/// Mutations for each body.
const ROUNDS: u64 = 6000;

/// Valid encodings of each shape, for all bodies.
fn seeds(sample: &Sample) -> Vec<Vec<u8>> {
    let ledger = &sample.ledger;
    let targets = targets(sample);
    let keys = [&targets.updated[..], &targets.old, &targets.absent];
    let files = [
        ledger.prove_keys(targets.stamp, &keys, true),
        ledger.prove_keys(targets.stamp, &[&targets.absent], false),
        ledger.prove_range(targets.stamp, b"key-2", Some(b"key-6"), true),
        ledger.prove_range(Stamp::default(), b"", None, true),
        ledger.receipt(targets.stamp, 0),
        ledger.standing(7, ledger.headers.len() as u64),
        ledger.prove_time(1_700_000_009_500),
        ledger.prove_time(u64::MAX),
    ];
    let mut seeds: Vec<Vec<u8>> = files.iter().map(|file| file.encode().expect("it fits")).collect();
    for file in &files {
        if let Proof::Query(proof) = &file.proof {
            seeds.extend(proof.shards.iter().map(|shard| shard.trees.encode()));
        }
        seeds.push(file.proof.log().checkpoint.to_vec());
    }
    seeds.extend(ledger.headers.iter().rev().take(20).map(coppice_verify::header::Header::encode));
    seeds.push(ledger.headers[0].encode());
    // A ledger that changed its key: the header of the change, and a file that contains it.
    let mut rotated = Sample::standard().ledger;
    rotated.rotate(&[8; 32]);
    seeds.push(rotated.newest().encode());
    seeds.push(rotated.standing(7, rotated.headers.len() as u64).encode().expect("it fits"));
    seeds.push(ledger.shard_map.encode());
    seeds.extend(ledger.versions.values().flat_map(|version| &version.journal).take(9).map(Entry::encode));
    let mut out = Writer::new();
    Params::default().encode(&mut out);
    seeds.push(out.into_bytes());
    let mut out = Writer::new();
    Operation { key: b"key".to_vec().into(), change: Change::Put(b"value".to_vec().into()) }.encode(&mut out);
    seeds.push(out.into_bytes());
    seeds.extend(of_ledgers());
    seeds.push(ledger.key.verifier().to_string().into_bytes());
    let member = |seed| Cosigner::from_seed("member.example/w", &[seed; 32]).expect("a name");
    let text = format!(
        "log {}\nwitness a {} https://a\nwitness b {}\ngroup g any a b\n# all of it\nquorum g\n",
        ledger.key.verifier(),
        member(1).verifier(),
        member(2).verifier()
    );
    seeds.push(text.into_bytes());
    let evidence = common::vectors::stored("evidence.json");
    let cases = evidence["cases"].as_array().expect("a list").iter().filter(|case| case["valid"] == true);
    seeds.extend(cases.map(|case| case["file"].as_str().expect("a text").as_bytes().to_vec()));
    seeds
}

/// Bytes that members signed, the records that followed, and proofs of them.
fn of_ledgers() -> Vec<Vec<u8>> {
    let world = World::new();
    let shown = Shown { request: true, envelope: true };
    let (stamp, ledger) = (world.head(), world.compact);
    let files = [
        world.cluster.prove_journals(stamp, ledger, &[0, 5], Some(3), shown),
        world.cluster.prove_lineage(stamp, ledger, clue(ledger, "lot-7"), Some(2), shown),
    ];
    let mut seeds: Vec<Vec<u8>> = files.iter().map(|file| file.encode().expect("it fits")).collect();
    seeds.push(world.cluster.headers[0].encode());
    seeds.extend(world.cluster.versions[&stamp].journal.iter().map(Entry::encode));
    seeds.extend(world.rounds.iter().flat_map(|(_, requests)| requests).step_by(5).map(|it| it.0.signed.clone()));
    let appended = world.answers.iter().flatten().flatten().flatten().step_by(4);
    for operation in appended.flat_map(|appended| appended.operations.iter().take(6)) {
        if let Change::Put(value) = &operation.change {
            seeds.push(value.to_vec());
        }
    }
    let members = NAMES.map(|name| world.cluster.value(stamp, &member_key(ledger, member(name))));
    seeds.extend(members.into_iter().flatten().map(<[u8]>::to_vec));
    seeds.extend(world.cluster.value(stamp, &head_key(ledger)).map(<[u8]>::to_vec));
    seeds
}

/// Changes some bytes in ways that break decoders.
fn mutate(sample: &mut Sample, seeds: &[Vec<u8>], seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=sample.random(3) {
        let mut at = |len: usize| sample.random(len as u64 + 1) as usize;
        let from = at(bytes.len());
        let to = (from + at(9)).min(bytes.len());
        match at(7) {
            0 => bytes.truncate(from),
            1 => drop(bytes.drain(from..to)),
            2 => drop(bytes.splice(from..to, [0xff; 4])),
            3 => drop(bytes.splice(from..to, [0; 4])),
            4 => {
                let other = &seeds[at(seeds.len() - 1)];
                let start = at(other.len());
                let end = (start + at(99)).min(other.len());
                drop(bytes.splice(from..to, other[start..end].iter().copied()));
            }
            5 => {
                let copy = bytes[from..(from + at(99)).min(bytes.len())].to_vec();
                drop(bytes.splice(from..from, copy));
            }
            _ if from < bytes.len() => bytes[from] ^= 1 << at(7),
            _ => {}
        }
    }
    bytes
}

#[test]
fn no_decoder_panics_on_mutations_of_valid_bytes() {
    let mut sample = Sample::standard();
    let seeds = seeds(&sample);
    for (name, body) in BODIES {
        println!("{name}");
        seeds.iter().for_each(|seed| body(seed));
        for _ in 0..ROUNDS {
            let seed = &seeds[sample.random(seeds.len() as u64) as usize];
            let bytes = mutate(&mut sample, &seeds, seed);
            body(&bytes);
        }
    }
}

/// Some mutations get through the decoders, so the bodies reach the code behind them.
#[test]
fn trees_with_flipped_bits_are_answered_or_refused() {
    let sample = Sample::standard();
    let targets = targets(&sample);
    let keys = [&targets.updated[..], &targets.old, &targets.absent];
    for file in [
        sample.ledger.prove_keys(targets.stamp, &keys, false),
        sample.ledger.prove_range(targets.stamp, b"key-2", None, false),
    ] {
        let bytes = file.encode().expect("it fits");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            coppice_verify::fuzz::answer(&flipped);
        }
    }
}

#[test]
fn the_bodies_trust_the_key_of_the_sample() {
    let key = Sample::standard().ledger.key.verifier().to_string();
    assert_eq!(include_str!("../vectors/ledger.vkey"), format!("{key}\n"));
}
