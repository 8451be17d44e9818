//! Runs a seed, in this thread.

use coppice_sim::{Settings, Verdict};
use tokio::runtime::Builder;

/// Runs one seed.
pub fn run(seed: u64, settings: Settings) -> Verdict {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    coppice_sim::run(runtime.expect("a runtime without input and output needs nothing"), seed, settings)
}
