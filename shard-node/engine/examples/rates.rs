//! Measures an engine on a real directory: `cargo run --release -p coppice-engine --example rates -- DIR [RECORDS]`.
//!
//! Loads records in versions of 500 puts, installs merges as they are built, flushes every 20 versions, then reads and
//! proves at random. It is no benchmark suite; it says where an engine stands on this machine.

use std::{error::Error, sync::Arc};

use coppice_engine::{Engine, MergeProgress, Options, PrepareId, RaftPosition, StageRequest};
use coppice_env::{Clock, DiskStorage, Rng, SimRng, SystemClock};
use coppice_types::{Change, Operation, Params, ShardId, Stamp};

const BATCH: u64 = 500;
const READS: u64 = 50_000;

fn key(number: u64) -> Vec<u8> {
    // Spread over the key space, as hashed keys are.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("account/{spread:016x}").into_bytes()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let records: u64 = arguments.next().map_or(Ok(200_000), |count| count.parse())?;
    let storage = Arc::new(DiskStorage::new(dir));
    let mut engine = Engine::create(storage, ShardId(0), Params::default(), Options::default())?;
    let clock = SystemClock::new();
    let mut rng = SimRng::new(1);
    load(&mut engine, &clock, records)?;
    let view = engine.view(&engine.decided())?;
    time(&clock, "gets", READS, || {
        for _ in 0..READS {
            view.get(&key(rng.below(records)), true)?.ok_or("a record is missing")?;
        }
        Ok(())
    })?;
    let mut bytes = 0;
    time(&clock, "proofs of a present key", READS / 10, || {
        for _ in 0..READS / 10 {
            bytes += view.prove_keys(&[&key(rng.below(records))])?.len() as u64;
        }
        Ok(())
    })?;
    println!("{} bytes a proof, {} trees", bytes / (READS / 10), engine.shape(&engine.decided())?.entries.len());
    println!("{:?}\n{:?}", engine.disk_usage()?, engine.counters());
    Ok(())
}

fn load(engine: &mut Engine, clock: &SystemClock, records: u64) -> Result<(), Box<dyn Error>> {
    let (mut flushing, mut merging) = (0.0, 0.0);
    let start = clock.now();
    for version in 1..=records / BATCH {
        let mut operations: Vec<Operation> = ((version - 1) * BATCH..version * BATCH)
            .map(|number| Operation { key: key(number), change: Change::Put(vec![number as u8; 100]) })
            .collect();
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        let merges: Vec<_> = engine.built_merges().into_iter().take(1).collect();
        let stamp = Stamp::new(0, version);
        let prepare_id = PrepareId { term: 1, attempt: version };
        let base = engine.decided();
        let staged =
            engine.stage(&StageRequest { stamp, prepare_id, base, merges: &merges, operations: &operations })?;
        engine.settle(&staged.state)?;
        engine.prune(stamp.version)?;
        let before = clock.now();
        while engine.merge_step(100_000)? == MergeProgress::Working {}
        merging += (clock.now() - before).as_secs_f64();
        if version % 20 == 0 {
            let before = clock.now();
            engine.flush(RaftPosition { index: version, term: 1 }, b"")?;
            flushing += (clock.now() - before).as_secs_f64();
        }
    }
    let seconds = (clock.now() - start).as_secs_f64();
    let rest = seconds - flushing - merging;
    println!(
        "{:.0} puts/s: {rest:.2} s staging, {merging:.2} s merging, {flushing:.2} s flushing",
        records as f64 / seconds
    );
    Ok(())
}

fn time(
    clock: &SystemClock,
    what: &str,
    count: u64,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = clock.now();
    run()?;
    println!("{:.0} {what}/s", count as f64 / (clock.now() - start).as_secs_f64());
    Ok(())
}
