//! Arguments of the commands that read records, versions and the root log.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::named::Named;
use crate::time;

/// The version to read.
#[derive(Clone, Copy, Debug, Args)]
pub struct At {
    /// The version to read, VERSION or EPOCH.VERSION [default: head].
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Named>,
    /// The epoch of --version [default: the one in which it stands].
    #[arg(long, value_name = "EPOCH", requires = "version")]
    pub epoch: Option<u64>,
    /// The time to read at: the newest version that is not later by the ledger's clock. RFC 3339
    /// with a zone, or ms since 1970. Refused while a later version might have the time, too.
    #[arg(long, value_name = "TIME", value_parser = time::parse, conflicts_with_all = ["version", "epoch"])]
    pub at_time: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub struct Time {
    /// The time, by the ledger's clock: RFC 3339 with a zone, or ms since 1970.
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub at: u64,
    /// Write a proof of the answer; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// Wait for a proof under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long, requires = "proof")]
    pub cosigned: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Get {
    /// The key.
    pub key: String,
    /// Write the value's bytes unchanged, even to a terminal; into a pipe or a file this is the
    /// default.
    #[arg(long, conflicts_with_all = ["json", "encoding"])]
    pub raw: bool,
    /// Write the value's bytes into a file; `-` for standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "encoding"])]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub at: At,
    /// Write a proof of the answer, or of absence; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// Wait for a proof under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long, requires = "proof")]
    pub cosigned: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Range {
    /// The lowest key; an empty one means from the first.
    #[arg(required_unless_present = "prefix", requires = "high")]
    pub low: Option<String>,
    /// The first key above the range; an empty one means to the last.
    pub high: Option<String>,
    /// Read all keys with this prefix.
    #[arg(long, value_name = "PREFIX", conflicts_with = "low")]
    pub prefix: Option<String>,
    /// Print only the keys, one per line; their values are read anyway.
    #[arg(long)]
    pub keys_only: bool,
    /// At most this many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Begin with the last key; with --limit, read the last records.
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub at: At,
    /// Write a proof that the range has these records and no others; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// Wait for a proof under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long, requires = "proof")]
    pub cosigned: bool,
}

#[derive(Clone, Debug, Args)]
pub struct History {
    /// The key.
    pub key: String,
    /// At most this many changes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub at: At,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A line is {\"key\": KEY} or {\"keys\": [KEY, ...]}, with \"version\": N or \"time\": TIME for a state other than head.\n\
                  With \"since_version\": N or \"since_time\": TIME it asks for each state since then, newest first, and with \"limit\": N for the newest N of them.\n\
                  A KEY is text, hex after 0x, or any text after text: . Answers come in any order. `line` is the number of the query's line, `more` says whether further answers about the key follow."
)]
pub struct Query {
    /// JSON lines, one query each; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the proofs into this directory; each answer names its file.
    #[arg(long, value_name = "DIR")]
    pub proof: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct Diff {
    /// The version before, VERSION or EPOCH.VERSION.
    pub from: Named,
    /// The version after.
    pub to: Named,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A key is taken from RIGHT if only RIGHT changed it since BASE. It is in conflict if LEFT and RIGHT both changed it, to different values.\n\
                  With a BASE after RIGHT, this takes back what was written between them: --base 8 --left 12 --right 7 takes back version 8."
)]
pub struct Merge {
    /// The version with which both sides are compared.
    #[arg(long, value_name = "VERSION")]
    pub base: Named,
    /// The version that gets the changes.
    #[arg(long, value_name = "VERSION")]
    pub left: Named,
    /// The version that has the changes.
    #[arg(long, value_name = "VERSION")]
    pub right: Named,
    /// Commit the changes as one batch if no key is in conflict, and if head has LEFT's value of
    /// each key to write.
    #[arg(long)]
    pub apply: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Header {
    /// The version whose commit header (or genesis) to show, VERSION or EPOCH.VERSION.
    #[arg(required_unless_present = "sequence", conflicts_with = "sequence")]
    pub version: Option<Named>,
    /// The entry of the root log, counted from 0.
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub struct Checkpoint {
    /// Write a proof that this checkpoint extends the one of --since, and which versions stand;
    /// `coppice verify --checkpoint` takes it. `-` for standard output.
    #[arg(long, value_name = "FILE", requires = "since")]
    pub proof: Option<PathBuf>,
    /// The older checkpoint: a note, or the proof file to verify; `-` for standard input.
    #[arg(long, value_name = "FILE", requires = "proof")]
    pub since: Option<PathBuf>,
    /// Print the newest checkpoint that witnesses have cosigned.
    #[arg(long)]
    pub cosigned: bool,
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Log {
    /// An action other than listing.
    #[command(subcommand)]
    pub action: Option<LogAction>,
    /// The first entry.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// At most this many entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Go on with new entries, until interrupted.
    #[arg(long)]
    pub follow: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Watch {
    /// Only changes of this key.
    pub key: Option<String>,
    /// Only changes of keys with this prefix.
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<String>,
    /// The first entry of the root log to show [default: the next one].
    #[arg(long, value_name = "N")]
    pub from: Option<u64>,
    /// End after this many entries of the root log.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Show the new values, too.
    #[arg(long)]
    pub values: bool,
}

/// Actions on the root log other than listing.
#[derive(Clone, Debug, Subcommand)]
pub enum LogAction {
    /// Check that the log extends a checkpoint that was saved before. Exit code 1 if it does not.
    Check(LogCheck),
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The verdict is `fine`, `shrunk`, `fork`, `late` (the saved checkpoint was signed by a key that the ledger had replaced), `unproven`, or with a policy `not cosigned`. \
                  With any verdict but `fine`, keep both checkpoints: two signed ones that contradict each other are evidence against the holder of the key, which --evidence writes for others."
)]
pub struct LogCheck {
    /// The saved checkpoint: a note, or a proof file; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// The ledger's public key, or `@` and a file that holds it [default: that of --trust].
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<String>,
    /// A C2SP policy: the newest checkpoint must have its quorum of cosignatures. The policy may
    /// also name the ledger's key.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Write the newest checkpoint to this file, if all is fine; it may be the file of --from.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a fork, or a late signature, to this file as evidence for others.
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}
