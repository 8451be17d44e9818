//! A drifting Zipf load: how even the DPUs' work is, with the host's help and without.

use coppice_engine::ShardState;
use coppice_env::{Rng, SimRng};
use coppice_types::Params;

use crate::{
    Calibration, Options, Query,
    testing::{Ledger, eager, emulated, put, reader},
};

const DPUS: u64 = 16;
const KEYS: usize = 12_000;

fn key(number: usize) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Numbers by Zipf's law: number n is drawn with a weight of 1 / (n + 1).
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(count: usize) -> Self {
        let mut sum = 0.0;
        Self {
            sums: (1..=count)
                .map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                })
                .collect(),
        }
    }

    fn draw(&self, rng: &mut SimRng) -> usize {
        let all = self.sums[self.sums.len() - 1];
        let at = rng.below(1 << 52) as f64 / (1_u64 << 52) as f64 * all;
        self.sums.partition_point(|sum| *sum <= at)
    }
}

/// The busiest DPU's lookups over the mean, averaged over all batches but the first ones, and the
/// share of lookups that DPUs answered.
fn imbalance(ledger: &Ledger, state: ShardState, host_lookup_s: f64) -> (f64, f64) {
    let calibration = Calibration { launch_s: 0.0, host_lookup_s, ..Calibration::default() };
    let mut reader = reader(emulated(DPUS as u32, ""), Options { calibration, result_bytes: 512, ..eager(0) });
    reader.insert(&ledger.engine.view(&state).expect("retained")).expect("sound pages");
    reader.publish();
    let (zipf, mut rng) = (Zipf::new(KEYS), SimRng::new(5));
    let (mut ratios, mut batches) = (0.0, 0.0);
    for batch in 0..40 {
        // Hot keys are neighbours, and the hot part of the keys moves on.
        let hottest = batch / 4 * 97;
        let draw = |rng: &mut SimRng| key((hottest + zipf.draw(rng)) % KEYS);
        let queries: Vec<Query> = (0..4000).map(|_| Query { state, key: draw(&mut rng) }).collect();
        let before = reader.counts();
        assert!(reader.answer(&queries).iter().all(Result::is_ok));
        let after = reader.counts();
        let mean = (after.pim_lookups - before.pim_lookups) as f64 / DPUS as f64;
        if batch >= 8 && mean > 0.0 {
            ratios += after.most_lookups as f64 / mean;
            batches += 1.0;
        }
    }
    assert!(batches > 20.0, "the DPUs have work");
    (ratios / batches, reader.counts().pim_lookups as f64 / reader.counts().lookups as f64)
}

#[test]
fn the_host_takes_what_makes_one_dpu_the_busiest() {
    let mut ledger = Ledger::new(Params { inline_bytes: 128, ..Params::default() });
    let state = ledger.commit((0..KEYS).map(|number| put(&key(number), 1)).collect());
    // A host so slow that nothing is promoted.
    let (alone, all) = imbalance(&ledger, state, 1.0);
    assert!(all > 0.99, "{all}");
    let (helped, share) = imbalance(&ledger, state, 1.5e-6);
    println!("busiest over mean: {alone:.2} alone, {helped:.2} with the host's help; share of DPUs {share:.2}");
    assert!(alone > 1.4, "the load is skewed: {alone}");
    assert!(helped < 1.45 && helped < alone * 0.9, "{helped} with the host, {alone} without");
    assert!((0.5..0.99).contains(&share), "both sides work: {share}");
}
