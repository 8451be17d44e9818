//! Runs all systems on all shapes.

use std::{collections::HashMap, hint::black_box};

use anyhow::Result;
use coppice_env::{Clock, SystemClock};
use coppice_pim::Calibration;

use crate::{
    index,
    shapes::{Object, Queries, Shape, shapes},
    systems::{Batch, DPUS, HostCosts, Placement, Running, System},
    trees::{self, Tree},
};

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Queries of a batch.
    pub singles: usize,
    pub multiples: usize,
    pub batches: usize,
    /// Batches that do not count.
    pub warm_up: usize,
    /// Exponent of Zipf's law.
    pub exponent: f64,
}

impl Plan {
    /// The paper's batches of single queries; of multi-queries a tenth.
    pub const WHOLE: Self =
        Self { seed: 1, singles: 100_000, multiples: 10_000, batches: 16, warm_up: 8, exponent: 0.99 };
    pub const QUICK: Self = Self { singles: 20_000, multiples: 500, batches: 8, warm_up: 4, ..Self::WHOLE };
}

/// The outcome of one shape.
#[derive(Debug)]
pub struct Outcome {
    pub shape: Shape,
    pub tree: Tree,
    pub times: Vec<u64>,
    pub placement: Placement,
    batches: HashMap<(System, bool), Batch>,
}

impl Outcome {
    /// The mean batch of a system: of single or of multi-queries.
    #[must_use]
    pub fn batch(&self, system: System, multiple: bool) -> Batch {
        self.batches[&(system, multiple)]
    }

    /// The time of its batch over that of Panther.
    #[must_use]
    pub fn ratio(&self, system: System, multiple: bool) -> f64 {
        self.batch(system, multiple).seconds / self.batch(System::Panther, multiple).seconds
    }
}

#[derive(Debug)]
pub struct Results {
    pub plan: Plan,
    pub costs: Vec<HostCosts>,
    pub outcomes: Vec<Outcome>,
}

/// Runs all. `costs` are those of the host, which are measured if there are none.
///
/// # Errors
/// If the engine or the emulator fails.
pub fn run(plan: Plan, costs: Option<HostCosts>) -> Result<Results> {
    let mut results = Results { plan, costs: Vec::new(), outcomes: Vec::new() };
    for shape in shapes() {
        let tree = trees::measure(shape.mean_records())?;
        let times = shape.times(plan.seed);
        let placement = Placement::of_leaves(&shape.block_records(plan.seed), &tree);
        let costs = costs.unwrap_or_else(|| measure(&times));
        let mut batches = HashMap::new();
        for multiple in [false, true] {
            for system in System::ALL {
                let mut running = Running::new(system, &placement, &tree, &Calibration::default(), costs);
                // All systems get the same queries.
                let mut queries = Queries::new(&shape, plan.exponent, plan.seed);
                let mut done = Vec::with_capacity(plan.batches);
                for _ in 0..plan.batches {
                    let lookups =
                        if multiple { queries.multiples(plan.multiples) } else { queries.singles(plan.singles) };
                    done.push(running.batch(&lookups));
                }
                batches.insert((system, multiple), mean(&done[plan.warm_up..]));
            }
        }
        results.costs.push(costs);
        results.outcomes.push(Outcome { shape, tree, times, placement, batches });
    }
    Ok(results)
}

fn mean(batches: &[Batch]) -> Batch {
    let of = |figure: fn(&Batch) -> f64| batches.iter().map(figure).sum::<f64>() / batches.len() as f64;
    Batch { seconds: of(|it| it.seconds), imbalance: of(|it| it.imbalance), host_share: of(|it| it.host_share) }
}

/// What the host takes for each lookup, on this machine.
fn measure(times: &[u64]) -> HostCosts {
    const LOOKUPS: usize = 400_000;
    let clock = SystemClock::new();
    let (lines_ns, table_ns) = index::lookup_ns(times, LOOKUPS, &clock);
    let objects: Vec<Object> =
        (0..LOOKUPS as u32).map(|at| Object { block: at.wrapping_mul(2_654_435_761), keyword: at }).collect();
    let start = clock.now();
    let mut queues: Vec<Vec<Object>> = vec![Vec::new(); DPUS];
    objects.iter().for_each(|object| queues[object.block as usize % DPUS].push(*object));
    black_box(&queues);
    let dispatch_s = (clock.now() - start).as_secs_f64() / LOOKUPS as f64;
    HostCosts { dispatch_s, lines_s: lines_ns / 1e9, table_s: table_ns / 1e9 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    /// Of a machine that is not this one, so that the test does not depend on its load.
    const COSTS: HostCosts = HostCosts { dispatch_s: 10e-9, lines_s: 30e-9, table_s: 60e-9 };

    #[test]
    fn the_order_of_the_rivals_holds_and_every_leaf_has_its_place() {
        let plan = Plan { singles: 10_000, multiples: 100, batches: 6, warm_up: 3, ..Plan::WHOLE };
        let results = run(plan, Some(COSTS)).expect("the emulator works");
        for outcome in &results.outcomes {
            let name = outcome.shape.name;
            let (least, most) = (outcome.placement.bytes.iter().min(), outcome.placement.bytes.iter().max());
            let (least, most) = (*least.expect("DPUs"), *most.expect("DPUs"));
            assert!(least * 100 >= most * 90, "{name}: {least} to {most} bytes");
            for multiple in [false, true] {
                let ratio = |system| outcome.ratio(system, multiple);
                println!("{name} {multiple}: {:?}", System::ALL.map(|system| (system, ratio(system))));
                assert!(ratio(System::Coppice) <= 1.0, "{name}: fewer lookups take no longer");
                assert!(ratio(System::Ht) > 1.0, "{name}: a slower index is slower");
                assert!(ratio(System::Ss) > ratio(System::Panther), "{name}: skew costs");
                // A block of 4SQ is one leaf, or a binary tree of few levels.
                if name != "4SQ" {
                    assert!(ratio(System::SdnBinary) > ratio(System::SdnWide), "{name}: rounds cost");
                    assert!(ratio(System::SdnBinary) > ratio(System::Ht), "{name}: more than a slower index");
                }
                let batch = |system| outcome.batch(system, multiple);
                assert!(batch(System::Panther).imbalance < batch(System::Ss).imbalance, "{name}: loads are evened");
                assert!(batch(System::Pp).host_share > batch(System::Panther).host_share, "{name}: none comes back");
                assert!(batch(System::Ds).imbalance <= batch(System::Ss).imbalance, "{name}: keywords move");
            }
        }
        let report = report::markdown(&results);
        let tables = report.matches("\n## ").count();
        let said = report.matches("Modelled for UPMEM v1A from published constants, not run on hardware").count();
        assert_eq!((tables, said), (5, 6), "every table says so, and the introduction");
    }
}
