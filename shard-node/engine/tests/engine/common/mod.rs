//! Common parts of the tests: workloads, the model, and replicas that are compared with it.

pub mod checks;
pub mod forest;
pub mod model;
pub mod replica;
pub mod workload;

use std::ops::Range;

use coppice_engine::Options;
use coppice_env::{Rng, SimRng, Workers};
use coppice_types::Params;

/// Runs a test once for each seed. A failure names its seed.
pub fn for_each_seed(test: &'static str, default_count: u64, run: impl Fn(u64)) {
    for seed in seeds(default_count) {
        let _announce = Announce { test, seed };
        run(seed);
    }
}

fn seeds(default_count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("COPPICE_SEEDS") else { return 0..default_count };
    let number = |text: &str| text.trim().parse().expect("COPPICE_SEEDS is a count or a range like 5..8");
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    }
}

struct Announce {
    test: &'static str,
    seed: u64,
}

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { test, seed } = *self;
            eprintln!("repeat: COPPICE_SEEDS={seed}..{} cargo test -p coppice-engine --test engine {test}", seed + 1);
        }
    }
}

/// A random index below `len`.
pub fn pick(rng: &mut SimRng, len: usize) -> usize {
    usize::try_from(rng.below(len as u64)).expect("an index")
}

/// Parameters that make trees deep and forests busy.
pub fn tiny_params(rng: &mut SimRng) -> Params {
    let tree_limit = 3 + u8::try_from(rng.below(4)).expect("small");
    let base = Params { value_bytes_max: 1 << 16, tree_limit, tier_ratio: 2, ..Params::default() };
    let base = Params { journals_kept: rng.chance(500), ..base };
    match rng.below(8) {
        // Four entries in a node, eight records in a tree.
        0..=3 => Params {
            capacity: 8 + u32::try_from(rng.below(9)).expect("small"),
            key_bytes_max: 16,
            node_bytes: 352,
            fanout: 4,
            inline_bytes: 8,
            filter_bits: 4,
            ..base
        },
        4 | 5 => Params {
            capacity: 40,
            key_bytes_max: 24,
            node_bytes: 512,
            fanout: 6,
            inline_bytes: 32,
            tier_ratio: 4,
            ..base
        },
        // Nodes of several pages.
        6 => Params {
            capacity: 64,
            key_bytes_max: 512,
            node_bytes: 8192,
            fanout: 1024,
            inline_bytes: 1024,
            filter_bits: 32,
            ..base
        },
        _ => Params { capacity: 30, ..base },
    }
}

/// Caches, segments and logs that are small enough to reach each of their limits.
pub fn tiny_options(rng: &mut SimRng) -> Options {
    let sizes = [0, 5000, 64 << 10, 1 << 20];
    Options {
        young_cache_bytes: sizes[pick(rng, sizes.len())],
        old_cache_bytes: sizes[pick(rng, sizes.len())],
        hash_cache_bytes: [0, 2000, 1 << 20][pick(rng, 3)],
        segment_bytes_max: [1000, 20_000, 1 << 20][pick(rng, 3)],
        meta_compaction_bytes_min: [0, 3000, 1 << 20][pick(rng, 3)],
        rows_held_min: [1, 3, 4096][pick(rng, 3)],
        filters_cached_max: [0, 3, 64][pick(rng, 3)],
        free_bytes_kept_min: [0, 64 << 10, 1 << 20][pick(rng, 3)],
        hot_value_bytes_max: [0, 4000, u64::MAX][pick(rng, 3)],
        waiting_percent_max: [0, 25, 1000][pick(rng, 3)],
        name_percent_max: [0, 6, 10_000][pick(rng, 3)],
        workers: Workers::Inline,
    }
}
