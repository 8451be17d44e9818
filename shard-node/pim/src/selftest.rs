//! What an operator runs before trusting DPUs: conformance, and times for the cost model.
//!
//! Conformance is that the DPUs and the emulator give the same proofs, which are the engine's own,
//! and that no answer fails a check. Times of emulated DPUs are modelled; the host's are measured.

use std::sync::Arc;

use coppice_engine::{Engine, PrepareId, ShardState, StageRequest};
use coppice_env::{Clock, SimRng, SimStorage, Workers};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term};

use crate::{
    Calibration, DpuApi, Dpus, Error, ImageOptions, LookupCost, Options, Query, Reader, Result, layout::query_bytes,
};

/// Records of the ledger that is looked into.
const KEYS: u32 = 40_000;
/// Repetitions of a measurement; their median counts.
const REPEATS: usize = 9;
/// Bytes for each DPU in a measured transfer.
const TRANSFER_BYTES: usize = 256 << 10;

/// What a self-test found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Whether the times are modelled from published constants, since the DPUs are emulated.
    pub modelled: bool,
    /// Number of DPUs.
    pub dpus: usize,
    /// Times. Those of DPUs are measured or modelled; that of the host is measured in any case.
    pub calibration: Calibration,
    /// Lookups on DPUs whose proofs were compared.
    pub lookups: u64,
    /// What the emulator counts for one lookup.
    pub cost: LookupCost,
    /// Fewest lookups that the DPUs answer sooner than one core of this host, by these times.
    /// `None` if they never do.
    pub break_even: Option<usize>,
}

/// A part of the self-test, which has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Launches and transfers are measured.
    Times,
    /// A ledger is made.
    Ledger,
    /// The host answers all queries, which is measured.
    Host,
    /// The DPUs answer all queries.
    Dpus,
    /// Emulated DPUs answer them.
    Emulator,
    /// All proofs are compared with the engine's.
    Comparison,
}

impl Step {
    /// All steps in their order.
    pub const ALL: [Self; 6] = [Self::Times, Self::Ledger, Self::Host, Self::Dpus, Self::Emulator, Self::Comparison];

    /// What is being done.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Times => "measure launches and transfers",
            Self::Ledger => "make a ledger",
            Self::Host => "answer on the host",
            Self::Dpus => "answer on the DPUs",
            Self::Emulator => "answer on emulated DPUs",
            Self::Comparison => "compare with the engine",
        }
    }
}

/// Tests the DPUs. `clock` measures times, and `begins` hears of each step that begins.
///
/// # Errors
/// `Call` if the library fails, `Mismatch` if a DPU or a proof does.
pub fn selftest(mut dpus: Dpus, clock: &Arc<dyn Clock>, mut begins: impl FnMut(Step)) -> Result<Report> {
    let modelled = dpus.are_emulated();
    let mut calibration = Calibration::default();
    begins(Step::Times);
    if !modelled {
        measure_times(&mut dpus, &**clock, &mut calibration)?;
    }
    begins(Step::Ledger);
    let (engine, state) = ledger()?;
    let queries: Vec<Query> = (0..2 * KEYS).step_by(3).map(|number| Query { state, key: key(number) }).collect();
    begins(Step::Host);
    calibration.host_lookup_s = time_host(&**clock, &engine, &state, &queries)?;
    begins(Step::Dpus);
    let count = dpus.count();
    calibration.rank_dpus = dpus.ranks().map(|rank| rank.len()).max().unwrap_or(1) as f64;
    let (proofs, lookups, _) = ask(dpus, &engine, &state, &queries)?;
    begins(Step::Emulator);
    let emulated = Dpus::allocate(&DpuApi::emulator(), count as u32, "", "emulator:kernel")?;
    let (expected, _, reader) = ask(emulated, &engine, &state, &queries)?;
    if proofs != expected {
        return Err(Error::Mismatch("a proof of these DPUs"));
    }
    begins(Step::Comparison);
    let view = engine.view(&state)?;
    for (query, proof) in queries.iter().zip(&proofs) {
        if view.prove_keys(&[&query.key])? != *proof {
            return Err(Error::Mismatch("a proof of the emulator"));
        }
    }
    let cost = reader.lookup_cost();
    calibration.lookup_cycles = cost.cycles;
    let query_bytes = query_bytes(key(0).len());
    let break_even = calibration.break_even(count, query_bytes, Options::default().result_bytes);
    Ok(Report { modelled, dpus: count, calibration, lookups, cost, break_even })
}

/// Seconds of one lookup with its proof on one core of the host.
fn time_host(clock: &dyn Clock, engine: &Engine, state: &ShardState, queries: &[Query]) -> Result<f64> {
    let mut reader = Reader::new(None, Options::default(), Box::new(SimRng::new(1)))?;
    reader.insert(&engine.view(state)?)?;
    reader.publish();
    let start = clock.now();
    let answers = reader.answer(queries);
    let took = clock.now() - start;
    answers.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(took.as_secs_f64() / queries.len() as f64)
}

/// Measures launches and transfers of DPUs: medians, into the constants of the cost model. What is
/// in their memories is overwritten.
///
/// # Errors
/// `Call` if the library fails.
pub fn measure_times(dpus: &mut Dpus, clock: &dyn Clock, calibration: &mut Calibration) -> Result<()> {
    let count = dpus.count();
    let median = |dpus: &mut Dpus, step: &mut dyn FnMut(&mut Dpus) -> Result<()>| -> Result<f64> {
        let mut times = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            let start = clock.now();
            step(dpus)?;
            times.push((clock.now() - start).as_secs_f64());
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[REPEATS / 2])
    };
    dpus.set_args(&vec![[0, 8, 0, 16, 0, 0]; count])?;
    calibration.launch_s = median(dpus, &mut |dpus| dpus.launch().map(drop))?;
    let largest = dpus.ranks().map(|rank| rank.len()).max().unwrap_or(1);
    let bytes = (largest * TRANSFER_BYTES) as f64;
    let mut buffers = vec![Some(vec![0; TRANSFER_BYTES]); count];
    calibration.up_bytes_s = bytes / median(dpus, &mut |dpus| dpus.push(0, &mut buffers))?;
    let chosen = vec![true; count];
    calibration.down_bytes_s = bytes / median(dpus, &mut |dpus| dpus.pull(0, TRANSFER_BYTES, &chosen).map(drop))?;
    Ok(())
}

fn key(number: u32) -> Vec<u8> {
    format!("account/{number:08}").into_bytes()
}

fn ledger() -> Result<(Engine, ShardState)> {
    let options = coppice_engine::Options { workers: Workers::Inline, ..coppice_engine::Options::default() };
    let mut engine = Engine::create(SimStorage::new().storage(), ShardId(0), Params::default(), options)?;
    let put = |number: u32| Operation {
        key: key(2 * number).into(),
        change: Change::Put(number.to_le_bytes().to_vec().into()),
    };
    let operations: Vec<Operation> = (0..KEYS).map(put).collect();
    let base = engine.decided();
    let request = StageRequest {
        stamp: Stamp::new(0, 1),
        prepare_id: PrepareId { term: Term(1), attempt: 1 },
        base,
        merges: &[],
        operations: &operations,
        erases: &[],
    };
    let state = engine.stage(&request)?.state;
    engine.settle(&state)?;
    Ok((engine, state))
}

/// Asks the DPUs for all proofs, and wants each lookup answered by a DPU.
fn ask(dpus: Dpus, engine: &Engine, state: &ShardState, queries: &[Query]) -> Result<(Vec<Vec<u8>>, u64, Reader)> {
    let most = queries.len().div_ceil(dpus.count()).next_multiple_of(64) * 2;
    let image = ImageOptions { entries_min: 1, ..ImageOptions::default() };
    let options =
        Options { image, dpu_lookups_max: most.min(1 << 14), small_batches_on_host: false, ..Options::default() };
    let mut reader = Reader::new(Some(dpus), options, Box::new(SimRng::new(1)))?;
    reader.insert(&engine.view(state)?)?;
    reader.publish();
    let proofs = reader.answer(queries).into_iter().collect::<Result<_>>()?;
    let counts = reader.counts();
    if counts.dpus_out > 0 || counts.pim_lookups == 0 {
        return Err(Error::Mismatch("an answer of a DPU"));
    }
    Ok((proofs, counts.pim_lookups, reader))
}

#[cfg(test)]
mod tests {
    use coppice_env::SystemClock;

    use super::*;

    #[test]
    fn emulated_dpus_pass_and_their_times_are_said_to_be_modelled() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let dpus = Dpus::allocate(&DpuApi::emulator(), 16, "", "emulator:kernel").expect("the emulator");
        let mut steps = Vec::new();
        let report = selftest(dpus, &clock, |step| steps.push(step)).expect("they conform");
        println!("{report:?}");
        assert_eq!(steps, Step::ALL);
        assert!(report.calibration.host_lookup_s > 0.0, "it is measured: {report:?}");
        assert!(report.modelled && report.dpus == 16 && report.lookups > 20_000, "{report:?}");
        let LookupCost { transfers, bytes, instructions, .. } = report.cost;
        assert!((8.0..40.0).contains(&transfers) && (400.0..2000.0).contains(&bytes), "{report:?}");
        assert!((100.0..2000.0).contains(&instructions), "{report:?}");
        assert!((300.0..4000.0).contains(&report.calibration.lookup_cycles), "{report:?}");
    }

    #[test]
    fn dpus_that_run_something_else_do_not_pass() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let dpus = Dpus::allocate(&DpuApi::emulator(), 2, "", "emulator:none").expect("the emulator");
        assert!(matches!(selftest(dpus, &clock, |_| ()), Err(Error::Mismatch(_))));
    }
}
