//! The plan of a run: its jobs, their order, and the places of their figures in the report.

mod collected;
mod job;
mod step;
#[cfg(test)]
mod tests;

pub use self::{
    collected::Collected,
    job::{Job, Store},
    step::{Step, Target},
};
use crate::jobs::{PlateauScale, Scale};

/// All steps of a run, in order. Repetitions of the comparison are interleaved: each round takes
/// every system once.
#[must_use]
pub fn plan(quick: bool) -> Vec<Step> {
    let scale = base_scale(quick);
    let step = |store, job, target| Step { store, job, target };
    let mut steps = Vec::new();
    for round in 0..3 {
        let scale = Scale { seed: round + 1, ..scale.clone() };
        // Only systems that goals refer to are measured again.
        let again = |store: &Store| match store {
            Store::Coppice | Store::RocksdbSynced => true,
            Store::Qmdb | Store::Firewood => round == 0 || !quick,
            _ => round == 0,
        };
        for store in Store::ALL.into_iter().filter(again) {
            steps.push(step(store, Job::Compare(scale.clone()), Target::Figures));
        }
        for store in [Store::Coppice, Store::RocksdbSynced].into_iter().filter(|_| !quick || round == 0) {
            steps.push(step(store, Job::Load(scale.clone()), Target::Figures));
        }
    }
    steps.push(step(Store::Coppice, Job::History(scale.clone()), Target::Figures));
    steps.push(step(Store::Coppice, Job::History(fifth(&scale)), Target::Under("coppice-fifth")));
    steps.push(step(Store::Coppice, Job::ProofsByTrees(scale.clone()), Target::Figures));
    let kept = Scale { records: if quick { 20_000 } else { 2_000_000 }, value_bytes: 20, batch: 1, ..scale.clone() };
    let kept = Scale { cache_bytes: 64 << 20, ..kept };
    steps.push(step(Store::Coppice, Job::Versions(kept), Target::Figures));
    for store in [Store::Nomt, Store::Qmdb, Store::Firewood] {
        steps.push(step(store, Job::Proofs(fifth(&scale)), Target::Figures));
    }
    // These jobs must be long enough for many merges and moves.
    let beside = Scale { records: 160_000, seconds: if quick { 8.0 } else { 32.0 }, ..scale.clone() };
    steps.push(step(Store::Coppice, Job::BesideMerges(beside.clone()), Target::Figures));
    steps.push(step(Store::Coppice, Job::BesideMoves(beside), Target::Figures));
    // Jobs that goals refer to come first, in case there is not time for all.
    steps.extend(sizes(&scale, quick));
    for plateau in plateaus(quick) {
        steps.push(step(Store::Coppice, Job::Plateau(plateau), Target::Figures));
    }
    steps.extend(sweeps(&scale, quick));
    steps
}

fn base_scale(quick: bool) -> Scale {
    let (records, cache_bytes, seconds, put_seconds) =
        if quick { (160_000, 64 << 20, 1.0, 1.0) } else { (1_000_000, 256 << 20, 3.0, 12.0) };
    Scale { records, value_bytes: 1024, batch: 4000, skew: 0.0, cache_bytes, seconds, put_seconds, seed: 1 }
}

fn fifth(scale: &Scale) -> Scale {
    Scale { records: scale.records / 5, ..scale.clone() }
}

/// Three runs: with settings for few writes, with settings for little disk space, and with more
/// data.
fn plateaus(quick: bool) -> [PlateauScale; 3] {
    let of = |name: &str, records: u64, value_bytes, rounds, seconds| {
        let batch = (records / 200).min(4000) as usize;
        let scale =
            Scale { records, value_bytes, batch, skew: 0.0, cache_bytes: 64 << 20, seconds, put_seconds: 0.0, seed: 1 };
        let (name, capacity) = (name.to_owned(), 48 << 10);
        PlateauScale {
            name,
            scale,
            rounds,
            retain: 40,
            looks: 40,
            capacity,
            flush_bytes: 96 << 20,
            waiting_percent: 12,
        }
    };
    let large = |plateau| PlateauScale { capacity: 64 << 10, flush_bytes: 64 << 20, waiting_percent: 15, ..plateau };
    let small = |plateau| PlateauScale { capacity: 20 << 10, flush_bytes: 40 << 20, waiting_percent: 20, ..plateau };
    if quick {
        return [
            of("plateau", 100_000, 256, 6, 15.0),
            small(of("plateau_small", 100_000, 256, 6, 15.0)),
            large(of("plateau_large", 160_000, 1024, 3, 15.0)),
        ];
    }
    [
        of("plateau", 200_000, 256, 200, 270.0),
        small(of("plateau_small", 200_000, 256, 20, 60.0)),
        large(of("plateau_large", 1_000_000, 1024, 5, 75.0)),
    ]
}

/// Sweeps: one quantity at a time is changed.
fn sweeps(scale: &Scale, quick: bool) -> Vec<Step> {
    let scale = if quick { scale.clone() } else { Scale { seconds: 1.5, ..fifth(scale) } };
    let mut steps = Vec::new();
    let mut point = |store, scale: Scale, capacity: Option<u32>, curve, x: f64| {
        steps.push(Step { store, job: Job::Point(scale, capacity), target: Target::Curve(curve, x) });
    };
    let capacities: &[u32] = if quick { &[8, 16, 80] } else { &[4, 8, 16, 32, 64, 80, 128] };
    for capacity in capacities {
        point(Store::Coppice, scale.clone(), Some(capacity << 10), "capacity", f64::from(*capacity));
    }
    if quick {
        return steps;
    }
    for store in [Store::Coppice, Store::RocksdbSynced] {
        for batch in [500, 1000, 2000, 4000] {
            point(store, Scale { batch, ..scale.clone() }, None, "batch", batch as f64);
        }
        for value_bytes in [256, 512, 1024, 2048] {
            point(store, Scale { value_bytes, ..scale.clone() }, None, "value", value_bytes as f64);
        }
        for skew in [0.0, 0.5, 0.9, 0.99] {
            point(store, Scale { skew, ..scale.clone() }, None, "skew", skew);
        }
    }
    steps
}

/// The same job at two sizes, and the cost of reads at the larger one; a quick run has smaller
/// sizes.
fn sizes(scale: &Scale, quick: bool) -> Vec<Step> {
    let step = |store, job, target| Step { store, job, target };
    let mut steps = Vec::new();
    let small = if quick { Scale { records: scale.records / 2, ..scale.clone() } } else { scale.clone() };
    for store in [Store::Coppice, Store::RocksdbSynced] {
        steps.push(step(store, Job::Growth(small.clone()), Target::Prefixed("scaling_")));
    }
    let large = |scale: &Scale| Scale { records: 10 * scale.records, ..scale.clone() };
    if quick {
        steps.push(step(Store::Coppice, Job::Growth(large(&small)), Target::Under("coppice-tenfold")));
        for value_bytes in [100, 1024] {
            let scale = Scale { value_bytes, ..scale.clone() };
            steps.push(step(Store::Coppice, Job::Reads(scale), Target::Figures));
        }
        return steps;
    }
    let short = Scale { value_bytes: 100, ..small.clone() };
    steps.push(step(Store::Coppice, Job::Growth(short.clone()), Target::Prefixed("scaling_100_")));
    steps.push(step(Store::Coppice, Job::GrowthAndReads(large(&small)), Target::Under("coppice-tenfold")));
    steps.push(step(Store::Coppice, Job::GrowthAndReads(large(&short)), Target::Under("coppice-tenfold-100")));
    steps
}
