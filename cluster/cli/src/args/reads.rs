//! Arguments of the commands that read: records, versions, the root log.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Named;

/// Which version is read.
#[derive(Clone, Copy, Debug, Args)]
pub struct At {
    /// The version to read, VERSION or EPOCH.VERSION [default: head].
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Named>,
    /// The epoch of --version [default: the one in which it stands].
    #[arg(long, value_name = "EPOCH", requires = "version")]
    pub epoch: Option<u64>,
}

/// `coppice get`.
#[derive(Clone, Debug, Args)]
pub struct Get {
    /// The key.
    pub key: String,
    /// Write the value's bytes as they are, also to a terminal; into a pipe or a file that is the default.
    #[arg(long, conflicts_with_all = ["json", "encoding"])]
    pub raw: bool,
    /// Write the value's bytes into a file; `-` for standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "encoding"])]
    pub out: Option<PathBuf>,
    /// Which version.
    #[command(flatten)]
    pub at: At,
    /// Writes a proof of the answer, also of absence; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// The proof is under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long, requires = "proof")]
    pub cosigned: bool,
}

/// `coppice range`.
#[derive(Clone, Debug, Args)]
pub struct Range {
    /// The lowest key; an empty one means from the first.
    #[arg(required_unless_present = "prefix", requires = "high")]
    pub low: Option<String>,
    /// The first key that is not in the range any more; an empty one means to the last.
    pub high: Option<String>,
    /// All keys that begin so.
    #[arg(long, value_name = "PREFIX", conflicts_with = "low")]
    pub prefix: Option<String>,
    /// Print keys alone, one a line; they are read with their values all the same.
    #[arg(long)]
    pub keys_only: bool,
    /// At most so many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Which version.
    #[command(flatten)]
    pub at: At,
    /// Writes a proof that these are the range's records, all of them; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// The proof is under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long, requires = "proof")]
    pub cosigned: bool,
}

/// `coppice history`.
#[derive(Clone, Debug, Args)]
pub struct History {
    /// The key.
    pub key: String,
    /// At most so many changes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// The version to begin with.
    #[command(flatten)]
    pub at: At,
}

/// `coppice diff`.
#[derive(Clone, Debug, Args)]
pub struct Diff {
    /// The version before, VERSION or EPOCH.VERSION.
    pub from: Named,
    /// The version after.
    pub to: Named,
}

/// `coppice merge`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A key is taken from RIGHT if RIGHT has another value of it than BASE, and LEFT has not; it is in conflict if both have, and not the same.\n\
                  With a BASE after RIGHT this takes back what was written between them, as in: --base 8 --left 12 --right 7 takes back version 8."
)]
pub struct Merge {
    /// The version that both sides are compared with.
    #[arg(long, value_name = "VERSION")]
    pub base: Named,
    /// The version that the changes are for.
    #[arg(long, value_name = "VERSION")]
    pub left: Named,
    /// The version that has the changes.
    #[arg(long, value_name = "VERSION")]
    pub right: Named,
    /// Commits them as one batch if no key is in conflict, and if head has each key that is written as LEFT has it.
    #[arg(long)]
    pub apply: bool,
}

/// `coppice header`.
#[derive(Clone, Debug, Args)]
pub struct Header {
    /// The version whose commit (or genesis) header is meant, VERSION or EPOCH.VERSION.
    #[arg(required_unless_present = "sequence", conflicts_with = "sequence")]
    pub version: Option<Named>,
    /// The entry of the root log, counted from 0.
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
}

/// `coppice checkpoint`.
#[derive(Clone, Debug, Args)]
pub struct Checkpoint {
    /// Writes a proof that this checkpoint extends the older one of --since and says which versions stand; `coppice verify --checkpoint` takes it. `-` for standard output.
    #[arg(long, value_name = "FILE", requires = "since")]
    pub proof: Option<PathBuf>,
    /// The older checkpoint: a note, or the proof file that is to be verified; `-` for standard input.
    #[arg(long, value_name = "FILE", requires = "proof")]
    pub since: Option<PathBuf>,
    /// The newest one that witnesses have cosigned.
    #[arg(long)]
    pub cosigned: bool,
}

/// `coppice log`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Log {
    /// Something else than listing.
    #[command(subcommand)]
    pub action: Option<LogAction>,
    /// The first entry.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// At most so many entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Goes on with what is appended, until interrupted.
    #[arg(long)]
    pub follow: bool,
}

/// `coppice watch`.
#[derive(Clone, Debug, Args)]
pub struct Watch {
    /// Only changes of this key.
    pub key: Option<String>,
    /// Only changes of keys that begin so.
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<String>,
    /// The first entry of the root log that is shown [default: the next one].
    #[arg(long, value_name = "N")]
    pub from: Option<u64>,
    /// End after so many entries of the root log.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Show the new values, too.
    #[arg(long)]
    pub values: bool,
}

/// What else is done with the root log.
#[derive(Clone, Debug, Subcommand)]
pub enum LogAction {
    /// Check that the log goes on from a checkpoint that was saved before. Exit code 1 if it does not.
    Check(LogCheck),
}

/// `coppice log check`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The verdict is `fine`, `shrunk`, `fork`, `late` (the saved checkpoint was signed by a key that the ledger had replaced), `unproven`, or with a policy `not cosigned`. \
                  With all but the first, keep both checkpoints: two signed ones that are not consistent are evidence against whoever holds the key."
)]
pub struct LogCheck {
    /// The saved checkpoint: a note, or a proof file; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// The ledger's public key, or `@` and a file that holds it [default: that of --trust].
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<String>,
    /// A C2SP policy: the newest checkpoint must have its quorum of cosignatures. It may name the ledger's key, too.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Writes the newest checkpoint there, if all is fine; it may be the file of --from.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}
