//! Options of `pim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Actions on memory modules that compute.
#[derive(Clone, Debug, Subcommand)]
pub enum Pim {
    /// Test DPUs before a reader trusts them: times, and that all proofs are the engine's. Exit
    /// code 1 if one is not.
    Selftest(PimSelftest),
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Times of emulated DPUs are modelled for UPMEM v1A from published constants, not run on hardware. docs/pim.md says how.\n\
                  `make -C shard-node/pim/kernel` builds the program of real DPUs with the vendor's compiler."
)]
pub struct PimSelftest {
    /// Test the emulator that is a part of this command.
    #[arg(long, conflicts_with_all = ["library", "program"])]
    pub emulator: bool,
    /// The vendor's library, by path or by name.
    #[arg(long, value_name = "FILE", default_value = "libdpu.so")]
    pub library: PathBuf,
    /// The DPUs' program.
    #[arg(long, value_name = "FILE", default_value = "kernel.dpu")]
    pub program: String,
    /// Number of DPUs.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=2560))]
    pub dpus: u32,
    /// The library's profile, such as `backend=hw`.
    #[arg(long, value_name = "PROFILE", default_value = "")]
    pub profile: String,
}
