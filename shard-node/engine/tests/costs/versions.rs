//! The cost of many kept versions, and of recovery with them. `COPPICE_VERSIONS` sets their number;
//! `make versions` runs with many.

use super::*;
use coppice_engine::fsck;
use coppice_env::Workers;

const VERSIONS: u64 = 6000;
const HELD: usize = 256;
const FLUSH_VERSIONS: u64 = 512;

fn options() -> Options {
    Options { rows_held_min: HELD, meta_compaction_bytes_min: 64 << 10, workers: Workers::Inline, ..Options::default() }
}

fn versions() -> u64 {
    std::env::var("COPPICE_VERSIONS").map_or(VERSIONS, |number| number.parse().expect("a number of versions"))
}

/// Keys come again, so a version tells by its values that it is the right one.
fn write(version: u64) -> Operation {
    put(version % 1000, &version.to_be_bytes())
}

fn check(engine: &Engine, version: u64) {
    let view = engine.view_at(Version(version)).expect("it is kept");
    assert_eq!(view.stamp().version, Version(version));
    let found = view.get(&key(version % 1000), true).expect("sound pages").and_then(|record| record.value);
    assert_eq!(found, Some(version.to_be_bytes().to_vec()));
}

#[test]
fn versions_are_recovered_at_size_and_pruned_and_rolled_back_across_blocks() {
    let (count, sim) = (versions(), SimStorage::new());
    let mut shard = Shard::on(&sim, Params { capacity: 4096, ..Params::default() }, options());
    for version in 1..=count {
        shard.commit(vec![write(version)]);
        while shard.engine.merge_step(1000).expect("sound pages") == coppice_engine::MergeProgress::Working {}
        if version % FLUSH_VERSIONS == 0 {
            shard.flush();
        }
    }
    shard.flush();
    shard.commit(vec![write(count + 1)]);
    drop(shard);
    // The last version was not flushed.
    let sim = sim.power_loss(1);
    let engine = Engine::open(sim.storage(), options()).expect("a sound directory");
    assert_eq!(engine.decided().version, Version(count));
    let usage = engine.disk_usage().expect("readable");
    assert_eq!(usage.versions, count + 1);
    // The table has the ends of the line, and some bytes for each block and each page of patches.
    let bound = 64 * count + 2 * (64 << 10) + 1000 * HELD as u64;
    assert!(usage.meta_bytes < bound, "{} bytes of meta log for {count} versions", usage.meta_bytes);
    for version in (1..=count).step_by((count / 500) as usize) {
        check(&engine, version);
    }
    let mut shard = Shard { engine, version: count, index: count };
    shard.engine.prune(Version(count / 3)).expect("usable");
    shard.engine.rollback(Version(count / 3 * 2), Epoch(1)).expect("it is kept");
    shard.flush();
    drop(shard);
    let sim = sim.power_loss(2);
    assert!(fsck(sim.storage()).expect("a directory").is_clean());
    let engine = Engine::open(sim.storage(), options()).expect("a sound directory");
    assert_eq!((engine.boundary(), engine.decided().version), (Version(count / 3), Version(count / 3 * 2)));
    for version in (count / 3..=count / 3 * 2).step_by((count / 500) as usize) {
        check(&engine, version);
    }
}
