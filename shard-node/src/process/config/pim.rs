//! The section `[pim]`: memory modules that compute, for a node with readers (`docs/pim.md`).

use std::{path::PathBuf, time::Duration};

use coppice_pim::BatcherOptions;
use coppice_process::Failure;
use serde::{Deserialize, Serialize};

use crate::pim::{PimOptions, Source};

/// The value of `library` that means emulated modules.
const EMULATOR: &str = "emulator";

/// Where batches go that the processor would answer sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmallBatches {
    /// To the processor.
    #[default]
    Host,
    /// To the modules, for tests and demos.
    Dpus,
}

/// Memory modules that compute. They make proofs of single keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pim {
    /// `emulator`, or the vendor's library by path or name.
    pub library: String,
    /// The file of the program for real modules.
    #[serde(default = "program")]
    pub program: String,
    /// The library's profile.
    #[serde(default)]
    pub profile: String,
    /// DPUs of each shard.
    #[serde(default = "dpus")]
    pub dpus: u32,
    /// Trees with fewer records stay in the processor's memory.
    #[serde(default = "records_min")]
    pub records_min: u64,
    /// Limit on the versions of a shard that are served.
    #[serde(default = "versions_max")]
    pub versions_max: usize,
    /// Limit on the nodes of a shard that are held in the processor's memory, too.
    #[serde(default = "nodes_max")]
    pub nodes_max: usize,
    /// A batch begins with this many queries.
    #[serde(default = "batch_queries")]
    pub batch_queries: usize,
    /// A batch also begins when its first query has waited this long.
    #[serde(default = "batch_wait_ms")]
    pub batch_wait_ms: u64,
    /// The processor makes a proof that has not come after this time.
    #[serde(default = "answer_wait_ms")]
    pub answer_wait_ms: u64,
    #[serde(default)]
    pub small_batches: SmallBatches,
}

fn program() -> String {
    "kernel.dpu".to_owned()
}

fn dpus() -> u32 {
    128
}

fn records_min() -> u64 {
    100_000
}

fn versions_max() -> usize {
    64
}

fn nodes_max() -> usize {
    256 << 10
}

fn batch_queries() -> usize {
    4096
}

fn batch_wait_ms() -> u64 {
    2
}

fn answer_wait_ms() -> u64 {
    25
}

impl Pim {
    /// The defaults on emulated modules.
    #[cfg(test)]
    pub(super) fn emulated() -> Self {
        Self {
            library: EMULATOR.to_owned(),
            program: program(),
            profile: String::new(),
            dpus: dpus(),
            records_min: records_min(),
            versions_max: versions_max(),
            nodes_max: nodes_max(),
            batch_queries: batch_queries(),
            batch_wait_ms: batch_wait_ms(),
            answer_wait_ms: answer_wait_ms(),
            small_batches: SmallBatches::default(),
        }
    }

    /// Refuses numbers out of their range.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let ranges = [
            ("dpus", u64::from(self.dpus), 1..=2560),
            ("versions_max", self.versions_max as u64, 1..=4096),
            ("nodes_max", self.nodes_max as u64, 1..=1 << 26),
            ("batch_queries", self.batch_queries as u64, 1..=1 << 20),
            ("batch_wait_ms", self.batch_wait_ms, 0..=1000),
            ("answer_wait_ms", self.answer_wait_ms, 1..=10_000),
        ];
        for (name, value, range) in ranges {
            if !range.contains(&value) {
                let message = format!("pim: {name} = {value} must be {} to {}", range.start(), range.end());
                return Err(Failure::usage(message));
            }
        }
        if self.library.is_empty() {
            return Err(Failure::usage("pim: library must be `emulator`, or the vendor's library by path or name"));
        }
        Ok(())
    }

    /// What a node is started with.
    pub(in crate::process) fn options(&self) -> PimOptions {
        let source = match self.library.as_str() {
            EMULATOR => Source::Emulator,
            library => Source::Library { library: PathBuf::from(library), program: self.program.clone() },
        };
        PimOptions {
            source,
            profile: self.profile.clone(),
            dpus: self.dpus,
            records_min: self.records_min,
            versions_max: self.versions_max,
            nodes_max: self.nodes_max,
            batches: BatcherOptions {
                queries_min: self.batch_queries,
                wait_max: Duration::from_millis(self.batch_wait_ms),
                queries_max: self.batch_queries.saturating_mul(4),
            },
            answer_wait: Duration::from_millis(self.answer_wait_ms),
            small_batches: self.small_batches == SmallBatches::Dpus,
        }
    }
}
