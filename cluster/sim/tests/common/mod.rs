//! Runs a seed in the current thread.

use coppice_sim::{Settings, Verdict};
use tokio::runtime::Builder;

pub fn run(seed: u64, settings: Settings) -> Verdict {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    coppice_sim::run(runtime.expect("a runtime without input and output needs nothing"), seed, settings)
}
