//! Options of `evidence`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Actions on evidence files.
#[derive(Clone, Debug, Subcommand)]
pub enum Evidence {
    /// Make an evidence file of two signed checkpoints. Exit code 1 if they do not contradict each
    /// other.
    Make(EvidenceMake),
    /// Check an evidence file, offline, and say whom it convicts. Exit code 1 if it proves nothing.
    Verify(EvidenceVerify),
    /// Show members of a federation a checkpoint that you were shown. They compare it with their
    /// logs. Exit code 1 if one of them has evidence.
    Report(EvidenceReport),
}

#[derive(Clone, Debug, Args)]
pub struct EvidenceReport {
    /// A signed checkpoint: a note, or a proof file; `-` for standard input.
    pub file: PathBuf,
    /// Where a member's cosigner serves what it knows: its URL without `/w`. Repeat it for each
    /// member.
    #[arg(long, value_name = "URL", required = true)]
    pub to: Vec<String>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A and B are signed checkpoints of one ledger in any order: notes, or proof files that have them.\n\
                  The log is that of the larger checkpoint, since its hashes show what it had at the smaller size. Any copy of its tiles will do; they are checked."
)]
pub struct EvidenceMake {
    /// A signed checkpoint: a note, or a proof file; `-` for standard input.
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// The other one.
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// The log of the larger checkpoint, as C2SP tiles: a folder, or an http(s) URL. Two
    /// checkpoints of one size need none, if --key signed both.
    #[arg(long, value_name = "DIR|URL", required_unless_present = "key")]
    pub from: Option<String>,
    /// The ledger's public key, or `@` and a file that holds it [default: that of the log's first
    /// entry].
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<String>,
    /// Write the evidence to this file [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct EvidenceVerify {
    /// The evidence file; `-` for standard input.
    pub file: PathBuf,
    /// The ledger's public key as text (`ledger.vkey`), or `@` and a file that holds it.
    #[arg(long, value_name = "PUBKEY", required_unless_present = "policy")]
    pub key: Option<String>,
    /// A C2SP policy that names witnesses, to find those that cosigned both checkpoints. It may
    /// also name the ledger's key.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}
