//! The command-line options of `history`.

use std::{path::PathBuf, time::Duration};

use crate::files::Files;

/// Longest time for which clients continue after the load, to learn the outcomes of their last
/// writes.
pub(super) const GRACE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Endpoints of the coordinators.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// For `https`.
    #[command(flatten)]
    pub files: Files,
    /// The ledger's public key.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// The directory for `history.jsonl`, `checkpoints.jsonl`, `findings.jsonl` and `proofs/`.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number of clients.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// The longest time, in seconds; a SIGTERM ends it sooner.
    #[arg(long, default_value_t = 3600)]
    pub seconds: u64,
    /// The seed of the clients' choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Pause of each client between two operations, in milliseconds.
    #[arg(long, default_value_t = 40)]
    pub pause_ms: u64,
    /// The number of groups in use at a time.
    #[arg(long, default_value_t = 6)]
    pub groups: u64,
    /// Operations on a group before a fresh one takes its place.
    #[arg(long, default_value_t = 120)]
    pub group_operations: u64,
}
