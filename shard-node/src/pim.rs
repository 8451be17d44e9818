//! Proofs of single keys from memory modules that compute (`docs/pim.md`), for a node's readers.
//!
//! A node with the setting has [`Modules`], and each of its shards a [`Prover`]: a thread with DPUs
//! of its own. It takes decided versions from the replica's state machine, part by part, and
//! answers batches of queries. The service asks it for a proof after it has read the record, and
//! has the engine make it if the prover declines, fails or is late. Both proofs have the same
//! bytes.
//!
//! **Invariants.**
//! - The replica waits for no prover: a prover holds the state machine as long as a short read.
//! - Queues are bounded. What does not fit is the service's.
//! - A version that the replica has no more is dropped before the next batch. A state is named by
//!   its digest, so no other one is taken for it.
//! - A prover that falls behind skips to the newest decided version.
//!
//! ```text
//! prover     the handle: takes queries, awaits answers
//! worker     the thread: versions, batches
//! shown      what both sides see: states, counts
//! demand     whether queries come fast enough for batches
//! ```

mod demand;
mod prover;
mod shown;
mod worker;

use std::{path::PathBuf, sync::Arc, time::Duration};

use coppice_env::{Clock, Rng};
use coppice_pim::{BatcherOptions, Calibration, DpuApi, Dpus, ImageOptions, Options, Reader, measure_times};

use crate::{replica::ReplicaHandle, shard::ShardMachine};

pub use prover::Prover;
pub use shown::{Asked, Figures, Outcome};

/// The name by which the emulator knows the kernel.
const EMULATED_PROGRAM: &str = "emulator:kernel";

/// The DPUs that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Emulated ones.
    Emulator,
    /// Those of the vendor's library, with the file of their program.
    Library { library: PathBuf, program: String },
}

/// How a node uses memory modules that compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PimOptions {
    pub source: Source,
    /// The library's profile.
    pub profile: String,
    /// DPUs of each shard.
    pub dpus: u32,
    /// Trees with fewer records stay on the host.
    pub records_min: u64,
    /// Limit on the versions of a shard that are served.
    pub versions_max: usize,
    /// Limit on the nodes of a shard that the host holds.
    pub nodes_max: usize,
    /// Size and age of batches.
    pub batches: BatcherOptions,
    /// How long the service waits for an answer before it makes the proof itself.
    pub answer_wait: Duration,
    /// Whether DPUs answer batches that the host would answer sooner: for tests and demos.
    pub small_batches: bool,
}

/// The memory modules of a node.
#[derive(Debug)]
pub struct Modules {
    api: Arc<DpuApi>,
    options: PimOptions,
}

impl Modules {
    /// `None`, with a line in the log, if the library is missing: the service then makes all proofs
    /// itself.
    #[must_use]
    pub fn open(options: &PimOptions) -> Option<Self> {
        let api = match &options.source {
            Source::Emulator => Ok(DpuApi::emulator()),
            Source::Library { library, .. } => DpuApi::load(library),
        };
        match api {
            Ok(api) => Some(Self { api, options: options.clone() }),
            Err(error) => {
                tracing::warn!(%error, "no processing in memory: the processor makes all proofs");
                None
            }
        }
    }

    /// Starts the prover of a replica. `None`, with a line in the log, if it can't have its DPUs.
    #[must_use]
    pub fn start(
        &self,
        replica: &ReplicaHandle<ShardMachine>,
        clock: &Arc<dyn Clock>,
        rng: Box<dyn Rng>,
    ) -> Option<Arc<Prover>> {
        let started = self.reader(clock, rng).and_then(|reader| Prover::start(replica, reader, clock, &self.options));
        match started {
            Ok(prover) => Some(Arc::new(prover)),
            Err(error) => {
                let group = replica.group;
                tracing::warn!(%group, %error, "no processing in memory: the processor makes all proofs");
                None
            }
        }
    }

    /// A reader without versions. Times of real DPUs are measured.
    fn reader(&self, clock: &Arc<dyn Clock>, rng: Box<dyn Rng>) -> coppice_pim::Result<Reader> {
        let PimOptions { source, profile, dpus, records_min, versions_max, nodes_max, small_batches, .. } =
            &self.options;
        let program = match source {
            Source::Emulator => EMULATED_PROGRAM,
            Source::Library { program, .. } => program,
        };
        let mut dpus = Dpus::allocate(&self.api, *dpus, profile, program)?;
        let mut calibration = Calibration::default();
        if !dpus.are_emulated() {
            measure_times(&mut dpus, &**clock, &mut calibration)?;
        }
        let image = ImageOptions {
            entries_min: *records_min,
            versions_max: *versions_max,
            nodes_max: *nodes_max,
            ..ImageOptions::default()
        };
        let options = Options {
            image,
            calibration,
            clock: Some(Arc::clone(clock)),
            small_batches_on_host: !small_batches,
            ..Options::default()
        };
        Reader::new(Some(dpus), options, rng)
    }
}
