//! The command line as clap sees it: names, options, help texts.

mod anchor;
mod console;
mod cosigner;
mod evidence;
mod ledger;
mod line;
mod named;
mod pim;
mod reads;
mod serve;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use anchor::{Anchor, AnchorExport, AnchorInterval, AnchorList, AnchorProve, Window};
pub use console::Console;
pub use cosigner::{Cosigner, CosignerAccept, CosignerDir, CosignerInit, CosignerResume};
pub use evidence::{Evidence, EvidenceMake, EvidenceReport, EvidenceVerify};
pub use ledger::{
    Ledger, LedgerAnchor, LedgerAppend, LedgerAudit, LedgerCreate, LedgerGet, LedgerJournals, LedgerLineage,
    LedgerMember, LedgerOccult, LedgerPurge, LedgerShow, LedgerVerify, MayOccult, MemberRole, OccultPrepare, Order,
    OrderSubmit, PurgePrepare, Signer,
};
use line::CONNECTION;
pub use line::command;
pub use named::Named;
pub use pim::{Pim, PimSelftest};
pub use reads::{
    At, Checkpoint, Diff, Get, Header, History, Log, LogAction, LogCheck, Merge, Query, Range, Time, Watch,
};
pub use serve::Serve;

const FORMS: &str = "Keys and values are text, or hex with `0x` in front, or the content of a file with `@` (`@-`: standard input); \
                     `text:` in front takes the rest as it is, `esc:` reads it as commands print it.";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 not found, a proof or an answer that does not hold, or a merge in conflict, 2 wrong usage, \
                          3 refused (conflict, limit, pruned, rolled back), 4 unavailable: try again.";

/// A sharded, verifiable ledger database.
#[derive(Debug, Parser)]
#[command(name = "coppice", version, about, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command has.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Endpoint of the ledger, as `coppice dev` prints it; commas separate several coordinators.
    #[arg(long, global = true, help_heading = CONNECTION, env = "COPPICE_ENDPOINT", value_name = "URL")]
    pub endpoint: Option<String>,
    /// PEM file of the authority that issued the server's certificate, for an `https` endpoint.
    #[arg(long, global = true, help_heading = CONNECTION, env = "COPPICE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Accept any server whose certificate comes from the authority of --ca, not only a
    /// coordinator: for a proxy that terminates TLS, or a public authority. Then only proven
    /// answers (--trust) are certain to come from the ledger.
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub any_server: bool,
    /// PEM file of the client's certificate, if the server asks for one.
    #[arg(long, global = true, help_heading = CONNECTION, env = "COPPICE_CLIENT_CERT", value_name = "FILE")]
    pub client_cert: Option<PathBuf>,
    /// PEM file of the private key of --client-cert.
    #[arg(long, global = true, help_heading = CONNECTION, env = "COPPICE_CLIENT_KEY", value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// The ledger's public key, or `@` and a file that holds it. Commits, `get` and `range` are
    /// then accepted only with a proof.
    #[arg(long, global = true, help_heading = CONNECTION, env = "COPPICE_TRUST", value_name = "PUBKEY")]
    pub trust: Option<String>,
    /// Longest wait for the answer to one attempt.
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Longest time to repeat a call while the ledger is unavailable.
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=86400))]
    pub patience: u64,
    /// Print one JSON object per result; errors too, to standard error.
    #[arg(long, global = true)]
    pub json: bool,
    /// How to print bytes [default: escaped text; in JSON, text if they are valid UTF-8, else hex].
    #[arg(long, global = true, value_name = "ENCODING")]
    pub encoding: Option<Encoding>,
}

/// How to print bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// As text; fail if the bytes are not valid UTF-8.
    Utf8,
    /// As hex with `0x` in front.
    Hex,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster in this process.
    Dev(Dev),
    /// Run a node and a coordinator in this process.
    Serve(Serve),
    /// Load batches: JSON lines, or the history of a git repository.
    Load(Load),
    /// Commit one batch as one version.
    Commit(Box<Commit>),
    /// Read a key. Exit code 1 if it has no value.
    #[command(after_help = FORMS)]
    Get(Get),
    /// Read the records of a key range: LOW included, HIGH not.
    #[command(after_help = FORMS)]
    Range(Range),
    /// List the changes of a key, newest first.
    #[command(after_help = FORMS)]
    History(History),
    /// Answer many queries, as JSON lines: keys at versions and times, and all states of keys over
    /// a range of them. Exit code 3 if some of them got no answer.
    Query(Query),
    /// List the keys that differ between two versions.
    Diff(Diff),
    /// Apply the changes between two versions to a third. Exit code 1 if keys are in conflict.
    Merge(Merge),
    /// Show the newest state.
    Head,
    /// Show the header of a version, or of an entry of the root log.
    Header(Header),
    /// Show the newest version at a time, by the ledger's clock.
    Time(Time),
    /// Print the newest signed checkpoint.
    Checkpoint(Checkpoint),
    /// List the headers of the root log.
    Log(Log),
    /// Show new commits and the keys that they changed, until interrupted.
    #[command(after_help = FORMS)]
    Watch(Watch),
    /// Replay a ledger that keeps its journals, and recompute every state root. Exit code 1 if
    /// anything differs.
    Audit(Audit),
    /// Check a proof file, offline. Exit code 1 if it does not hold.
    Verify(Verify),
    /// Two signed checkpoints that no honest ledger signs, as a file that convicts their signers.
    #[command(subcommand)]
    Evidence(Evidence),
    /// A member's cosigner: mirrors a ledger's log, cosigns what extends it, and convicts forks.
    #[command(subcommand)]
    Cosigner(Cosigner),
    /// Time stamps over the root log, by authorities that have no part in the ledger.
    #[command(subcommand)]
    Anchor(Anchor),
    /// Ledgers whose members sign what they append.
    #[command(subcommand, after_help = FORMS)]
    Ledger(Ledger),
    /// Orders that members of a ledger sign together.
    #[command(subcommand)]
    Order(Order),
    /// Drop old versions. The root log keeps who did it, and why.
    Prune(Prune),
    /// Keep a version from being pruned for a while, or renew a pin. Prints the pin's id.
    Pin(Pin),
    /// Remove a pin.
    Unpin(Unpin),
    /// List the pins.
    Pins,
    /// Make an older version head again, in a new epoch. The root log keeps who did it, and why.
    Rollback(Rollback),
    /// Change the key that signs checkpoints to one that the coordinators have. The root log keeps
    /// who did it, and why.
    RotateKey(RotateKey),
    /// Show the ledger in a browser, whose pages verify what they show. They only read.
    Console(Console),
    /// Show groups, replicas and leaders.
    Status,
    /// Transfer the leadership of a group to the replica on a node, for instance before stopping
    /// another node.
    Lead(Lead),
    /// Make a signing key and its public key.
    Keygen(Keygen),
    /// Check every replica of a stopped data directory, offline. Exit code 1 if anything is wrong.
    Fsck(Fsck),
    /// Memory modules that compute, for readers (docs/pim.md).
    #[command(subcommand)]
    Pim(Pim),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command.
    Man {
        /// The directory for the pages.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Print the version of this command.
    Version,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Prints `ready ENDPOINT` on one line when it serves, or an event as JSON with --json. Ctrl-C stops it.\n\
                  The shape (--shards, --split, --replicas, --partition-capacity, --journals, --ledgers) is chosen at the first start of a data directory."
)]
pub struct Dev {
    /// Data directory [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Number of shards [default: one more than --split keys, else 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: Option<u32>,
    /// Key at which a shard begins; repeatable [default: keys that divide the letters a to z
    /// evenly].
    #[arg(long, value_name = "KEY")]
    pub split: Vec<String>,
    /// Replicas of each group: 1, 3 or 5 [default: 3].
    #[arg(long, value_name = "N", value_parser = parse_replicas)]
    pub replicas: Option<u32>,
    /// Nodes with readers: copies of all shards that serve reads and never vote. They may come and
    /// go with each start.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub readers: u32,
    /// Give the readers emulated memory modules, which make proofs of single keys (docs/pim.md). It
    /// needs --readers.
    #[arg(long)]
    pub pim: bool,
    /// Number of records at which a partition is frozen [default: 81920].
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u32).range(8..))]
    pub partition_capacity: Option<u32>,
    /// Keep each version's operation lists, without values, so that `coppice audit` can replay
    /// them.
    #[arg(long)]
    pub journals: bool,
    /// Keep ledgers of members, with --journals. Half of the shards hold them.
    #[arg(long)]
    pub ledgers: bool,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7401, or a free port if
    /// that is taken].
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Allow --listen to name an address that other machines can reach, in the clear and without
    /// certificates.
    #[arg(long)]
    pub plaintext: bool,
    /// Prune automatically, and keep at least this many of the newest versions [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub retain_versions: Option<u64>,
    /// Prune automatically, and keep every version that was head within this many hours [default:
    /// all].
    #[arg(long, value_name = "HOURS", conflicts_with = "retain_versions", value_parser = clap::value_parser!(u32).range(1..))]
    pub retain_hours: Option<u32>,
    /// Address on which to serve the root log as C2SP tiles over HTTP; port 0 takes a free one
    /// [default: none].
    #[arg(long, value_name = "ADDRESS")]
    pub http_listen: Option<SocketAddr>,
    /// Key and submission prefix of a C2SP witness to ask for cosignatures of checkpoints;
    /// repeatable. A majority counts.
    #[arg(long, num_args = 2, value_names = ["VKEY", "URL"])]
    pub witness: Vec<String>,
    /// A C2SP policy in place of --witness: all its witnesses are asked, and its quorum counts.
    #[arg(long, value_name = "FILE", conflicts_with = "witness")]
    pub witness_policy: Option<PathBuf>,
    /// Address of a time-stamping authority (RFC 3161) that stamps checkpoints; repeat it, each
    /// time with a --tsa-root. A majority counts.
    #[arg(long, value_name = "URL", requires = "tsa_root")]
    pub tsa: Vec<String>,
    /// PEM file with the roots of a time-stamping authority, in the order of --tsa.
    #[arg(long, value_name = "FILE", requires = "tsa")]
    pub tsa_root: Vec<PathBuf>,
    /// Address and public key of a time ledger: a ledger of another cluster that takes checkpoints
    /// in, and is stamped itself; repeatable. It counts as an authority.
    #[arg(long, num_args = 2, value_names = ["HOST:PORT", "VKEY"])]
    pub time_ledger: Vec<String>,
    /// Time from one stamped checkpoint to the next, such as 2s. While nothing is committed, too.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = anchor::parse_duration)]
    pub anchor_every: Duration,
}

fn parse_replicas(text: &str) -> Result<u32, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("a group must have 1, 3 or 5 replicas".to_owned()),
    }
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A line is {\"time_ms\": N, \"note\": TEXT, \"encoding\": \"utf8\" or \"hex\", \"put\": [[KEY, VALUE], ...], \"delete\": [KEY, ...]};\n\
                  one line is one version. After an interruption, load the same input again: no line is applied twice."
)]
pub struct Load {
    /// JSON lines, gzipped or not; `-` for standard input.
    #[arg(value_name = "FILE", required_unless_present = "git", conflicts_with = "git")]
    pub file: Option<PathBuf>,
    /// A git repository: each commit of the first-parent history is one version, key = path, value
    /// = file.
    #[arg(long, value_name = "DIR")]
    pub git: Option<PathBuf>,
    /// The session to load in: 32 hex digits, or any text [default: made from the cluster and the
    /// first line].
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = FORMS)]
pub struct Commit {
    /// Set a key; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub put: Vec<String>,
    /// Delete a key; repeatable.
    #[arg(long, value_name = "KEY")]
    pub delete: Vec<String>,
    /// Only if this key has no value; repeatable.
    #[arg(long, value_name = "KEY")]
    pub if_absent: Vec<String>,
    /// Only if this key has this value; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub if_value: Vec<String>,
    /// Only if the key's value has this SHA-256; repeatable.
    #[arg(long, value_name = "KEY=HEX")]
    pub if_value_sha256: Vec<String>,
    /// Only if the key was last changed at this version; repeatable.
    #[arg(long, value_name = "KEY=EPOCH.VERSION")]
    pub if_changed: Vec<String>,
    /// Only if this is the newest version before the batch, VERSION or EPOCH.VERSION.
    #[arg(long, value_name = "VERSION")]
    pub expect_version: Option<Named>,
    /// The epoch of --expect-version [default: head's].
    #[arg(long, value_name = "EPOCH", requires = "expect_version")]
    pub expect_epoch: Option<u64>,
    /// Bytes that the ledger commits to by their hash, together with the batch.
    #[arg(long, value_name = "VALUE")]
    pub metadata: Option<String>,
    /// Write a receipt, a proof that the batch was committed.
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct Audit {
    /// The ledger's public key, or `@` and a file that holds it [default: that of --trust].
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<String>,
    /// The first version to replay; the state before it is trusted, and read with proofs [default:
    /// genesis].
    #[arg(long, value_name = "VERSION", value_parser = parse_from)]
    pub from: Option<u64>,
    /// The last version to replay [default: head].
    #[arg(long, value_name = "VERSION")]
    pub to: Option<u64>,
}

fn parse_from(text: &str) -> Result<u64, String> {
    if text == "genesis" { Ok(0) } else { text.parse().map_err(|_| "a version, or `genesis`".to_owned()) }
}

#[derive(Clone, Debug, Args)]
pub struct Verify {
    /// The proof file; `-` for standard input.
    pub file: PathBuf,
    /// The ledger's public key as text (`ledger.vkey`), or `@` and a file that holds it.
    #[arg(long, value_name = "PUBKEY", required_unless_present = "policy")]
    pub key: Option<String>,
    /// A C2SP policy: the newest checkpoint shown must have its quorum of cosignatures. The policy
    /// may also name the ledger's key.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// A newer checkpoint, made by `coppice checkpoint --proof`, that shows whether the version
    /// still stands.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Fail unless the proof answers for this key; repeat for several keys.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["expect_range", "expect_batch"])]
    pub expect_key: Vec<String>,
    /// Fail unless the proof covers the keys from LOW to before HIGH; an empty HIGH means to the
    /// end.
    #[arg(long, num_args = 2, value_names = ["LOW", "HIGH"], conflicts_with = "expect_batch")]
    pub expect_range: Vec<String>,
    /// Fail unless the receipt is for the batch whose journal entry has this hash, as `coppice
    /// commit --receipt --json` prints it.
    #[arg(long, value_name = "HASH")]
    pub expect_batch: Option<String>,
    /// Fail unless the proof is of the newest version at this time: RFC 3339 with a zone, or ms
    /// since 1970.
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse, conflicts_with_all = ["expect_key", "expect_range", "expect_batch"])]
    pub expect_time: Option<u64>,
    /// Fail unless the proof is of this version.
    #[arg(long, value_name = "VERSION")]
    pub expect_version: Option<u64>,
    #[command(flatten)]
    pub time: Window,
}

#[derive(Clone, Debug, Args)]
pub struct Prune {
    /// The oldest version to keep.
    #[arg(long, value_name = "VERSION")]
    pub before: u64,
    /// The reason, kept in the root log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The caller's name, kept in the root log [default: the user's name].
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    #[command(flatten)]
    pub consent: Consent,
}

/// Options of the commands that can't be undone.
#[derive(Clone, Copy, Debug, Args)]
pub struct Consent {
    /// Say what would happen, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation; without a terminal, none is asked for.
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Pin {
    /// The version to keep, VERSION or EPOCH.VERSION [default: head].
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Named>,
    /// How long to keep it from now on, at most a day.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub seconds: u64,
    /// The pin to renew, 32 hex digits [default: a new one].
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub struct Unpin {
    /// The pin, as `coppice pin` printed it.
    #[arg(value_name = "ID")]
    pub id: String,
}

#[derive(Clone, Debug, Args)]
pub struct Rollback {
    /// The version that becomes head again, VERSION or EPOCH.VERSION.
    #[arg(long, value_name = "VERSION")]
    pub to: Named,
    /// The reason, kept in the root log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The caller's name, kept in the root log [default: the user's name].
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    #[command(flatten)]
    pub consent: Consent,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Before this, give every coordinator the new key as `next_signing_key_file`; docs/operations.md has all steps."
)]
pub struct RotateKey {
    /// The new public key, or `@` and a file that holds it.
    #[arg(value_name = "PUBKEY")]
    pub key: String,
    /// The reason, kept in the root log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The caller's name, kept in the root log [default: the user's name].
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub struct Lead {
    /// The group, as `coppice status` names it: `root`, or `shard-N`.
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// The node whose replica should lead.
    #[arg(value_name = "NODE")]
    pub node: String,
}

#[derive(Clone, Debug, Args)]
pub struct Keygen {
    /// Name of the key; a ledger's ends in `/` and its cluster id [default: `coppice/` and a new
    /// cluster id].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Make the key of a C2SP witness: the public key has the form for cosignatures, which `dev
    /// --witness` and policies take.
    #[arg(long, requires = "name")]
    pub witness: bool,
    /// File for the private key, readable only by its owner; the public key goes next to it, with
    /// `.vkey`.
    #[arg(long, value_name = "FILE", default_value = "ledger.key")]
    pub out: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct Fsck {
    /// Data directory of `coppice dev` or of a coppice-shard-node, not in use.
    pub dir: PathBuf,
    /// The cold directory of the same node: `cold.dir` of its configuration.
    #[arg(long, value_name = "DIR")]
    pub cold_dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
