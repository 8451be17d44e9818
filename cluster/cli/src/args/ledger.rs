//! Arguments of the commands about ledgers of members.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::anchor::parse_duration;

/// Commands about ledgers of members.
#[derive(Clone, Debug, Subcommand)]
pub enum Ledger {
    /// Found a ledger. Its first members and its rules are its journal 0.
    Create(Box<LedgerCreate>),
    /// List the ledgers.
    List,
    /// Show a ledger: its size, root and rules.
    Show(LedgerShow),
    /// List the members and agents of a ledger.
    Members {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
    },
    /// Append journals in one signed request.
    Append(LedgerAppend),
    /// Print the payload of a journal.
    Get(LedgerGet),
    /// Verify that a journal is in the ledger as its author signed it. Exit code 1 if it is not.
    Verify(LedgerVerify),
    /// Trust the ledger's list as it is now: write its hashes into a file, or move those in it
    /// forward, if the list has only grown since.
    Anchor(LedgerAnchor),
    /// List journals.
    Journals(LedgerJournals),
    /// List the journals with a clue, newest first.
    Lineage(LedgerLineage),
    /// Change the members of a ledger, or its agents.
    #[command(subcommand)]
    Member(LedgerMember),
    /// Check that everything in a ledger is what its members signed. Exit code 1 if anything
    /// differs.
    Audit(LedgerAudit),
    /// Hide the content of journals for good. Owner and regulator sign for it.
    #[command(subcommand)]
    Occult(LedgerOccult),
    /// Take the oldest journals out of a ledger, or all of them. All whose journals go sign for it.
    #[command(subcommand)]
    Purge(LedgerPurge),
}

/// Commands about purges.
#[derive(Clone, Debug, Subcommand)]
pub enum LedgerPurge {
    /// Write an order to purge. `coppice order sign` and `coppice order submit` go on with it. Says
    /// who must sign it.
    Prepare(PurgePrepare),
    /// Keep journals with data from the purge that waits, with all journals of their requests. Any
    /// member may, up to the number that the ledger's rules allow.
    Retain {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
        /// A journal; repeatable.
        #[arg(long, value_name = "JSN", required = true)]
        jsn: Vec<u64>,
        #[command(flatten)]
        signer: Signer,
    },
    /// Take the purge back that waits. Owners, regulators and members whose journals would go may.
    Recall {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
        #[command(flatten)]
        signer: Signer,
    },
    /// Delete the journals of a purge, once its time of notice is over. Owners may. What was done
    /// before an interruption is not done again.
    Sweep {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
        #[command(flatten)]
        signer: Signer,
    },
    /// Show how far the newest purge has come: pending, recalled, sweeping, swept, or pruned, when
    /// no version that can be read has its journals.
    Status {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
    },
}

#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct PurgePrepare {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// Purge the journals below this number. It must be the first journal of a request.
    #[arg(long, value_name = "JSN", group = "which", value_parser = clap::value_parser!(u64).range(1..))]
    pub before: Option<u64>,
    /// Delete the ledger: close it for new journals at once, purge all that it has, and free its
    /// name in the end.
    #[arg(long, group = "which")]
    pub close: bool,
    /// The order can be submitted until the ledger has this many more journals [default: 100,000;
    /// with --close none].
    #[arg(long, value_name = "N", conflicts_with = "close")]
    pub within: Option<u64>,
    /// Write the order into a file; `-` for standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Judges each request again as its author signed it. Whether state roots follow from all that is in a version, `coppice audit` checks."
)]
pub struct LedgerAudit {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// The ledger's public key, or `@` and a file that holds it [default: that of --trust].
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<String>,
    /// Read each payload, too, and compare it with what its author signed.
    #[arg(long)]
    pub values: bool,
}

/// Commands about occulted journals.
#[derive(Clone, Debug, Subcommand)]
pub enum LedgerOccult {
    /// Write an order that names journals. `coppice order sign` and `coppice order submit` go on
    /// with it.
    Prepare(OccultPrepare),
    /// Show on which replicas' disks the content of an order's journals is gone. Exit code 4 if it
    /// is not gone from all.
    Status {
        /// The ledger: its name, or `0x` and its id.
        ledger: String,
        /// Number of the journal that is the order.
        jsn: u64,
        /// Wait until it is gone from all, so long at most.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = clap::value_parser!(u64).range(..=86400))]
        wait: Option<u64>,
    },
}

#[derive(Clone, Debug, Args)]
pub struct OccultPrepare {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// A journal; repeatable.
    #[arg(long, value_name = "JSN", required_unless_present = "clue")]
    pub jsn: Vec<u64>,
    /// All journals with this clue, the oldest 1,024 of those that are not occulted yet.
    #[arg(long, value_name = "CLUE", conflicts_with = "jsn")]
    pub clue: Option<String>,
    /// The order can be submitted until the ledger has this many more journals.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub within: u64,
    /// Write the order into a file; `-` for standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
}

/// Commands about an order that several members sign.
#[derive(Clone, Debug, Subcommand)]
pub enum Order {
    /// Show what an order does, and who has signed it. No ledger is asked.
    Show {
        /// The order, as `coppice ledger occult prepare` writes it; `-` for standard input.
        file: PathBuf,
    },
    /// Sign an order as a member, and write the signature into its file. No ledger is asked.
    Sign {
        /// The order.
        file: PathBuf,
        /// File of the member's private key.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The member that signs [default: the name of the key].
        #[arg(long, value_name = "MEMBER")]
        member: Option<String>,
    },
    /// Send an order, in the name of a member whose signature it needs as well.
    Submit(OrderSubmit),
}

#[derive(Clone, Debug, Args)]
pub struct OrderSubmit {
    /// The order; `-` for standard input.
    pub file: PathBuf,
    #[command(flatten)]
    pub signer: Signer,
    /// Wait until the content is gone from the disks of all replicas, so long at most. Exit code 4
    /// if it is not.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = clap::value_parser!(u64).range(..=86400))]
    pub wait: Option<u64>,
    /// Write a receipt, a proof of the order as it was signed.
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
}

/// A role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemberRole {
    /// Admits members, and changes their roles and keys.
    Owner,
    /// Agrees to what owners may not do alone.
    Regulator,
    /// Appends journals, and makes agents.
    Writer,
    /// Reads payloads.
    Reader,
    /// Reads everything but payloads of others.
    Verifier,
}

/// The rule of a ledger for who may occult.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MayOccult {
    /// Nobody.
    Nobody,
    /// An owner and a regulator together.
    Regulator,
    /// The owner alone; nobody else can become a member.
    Owner,
}

/// The signer of a request.
#[derive(Clone, Debug, Args)]
pub struct Signer {
    /// File of the member's private key, as `coppice keygen --name MEMBER` makes it.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The member or agent that signs [default: the name of the key].
    #[arg(long, value_name = "MEMBER")]
    pub member: Option<String>,
    /// One of the member's 16 lanes. Requests of one lane are applied in order.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    pub lane: u8,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A member is given as FILE, or NAME=FILE. FILE holds its public key, as `coppice keygen --name NAME` makes it; without NAME, the key's name is the member's."
)]
pub struct LedgerCreate {
    /// Name of the ledger: lower-case letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// File of the founder's private key. The founder is an owner, a writer and a reader.
    #[arg(long, value_name = "FILE")]
    pub owner: PathBuf,
    /// A member that appends and reads; repeatable.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub member: Vec<String>,
    /// A regulator; repeatable.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub regulator: Vec<String>,
    /// A member that reads; repeatable.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub reader: Vec<String>,
    /// A member that reads everything but payloads; repeatable.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub verifier: Vec<String>,
    /// Spread the ledger's records over all shards, for a ledger with more writes than one shard
    /// takes.
    #[arg(long)]
    pub spread: bool,
    /// Time between an order to purge and its first sweep, such as 30s or 168h. In this time
    /// members recall it, and keep journals from it.
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = parse_duration)]
    pub notice: Duration,
    /// Journals that a member may keep from a purge.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub retain: u32,
    /// After so many days without a key, a regulator signs a purge in a member's place [default:
    /// never].
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    pub absent_days: u32,
    /// Who may hide the content of journals for good. `owner` is for a ledger with one member.
    #[arg(long, value_name = "WHO", value_enum, default_value = "regulator")]
    pub occult: MayOccult,
    /// Longest time between two time stamps that is promised [default: none is].
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub anchor_every: u32,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerShow {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// Write a proof of its size, root and founding; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerAppend {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    #[command(flatten)]
    pub signer: Signer,
    /// Payload of a journal; repeat for several journals under one signature.
    #[arg(long, value_name = "VALUE", required = true)]
    pub data: Vec<String>,
    /// A clue of these journals, by which they are found; repeatable.
    #[arg(long, value_name = "CLUE")]
    pub clue: Vec<String>,
    /// Only if the ledger has this many journals.
    #[arg(long, value_name = "N")]
    pub if_size: Option<u64>,
    /// Only if this many journals have this clue; repeatable.
    #[arg(long, value_name = "CLUE=N")]
    pub if_count: Vec<String>,
    /// Write a receipt, a proof of these journals as they were signed.
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerGet {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// Number of the journal.
    pub jsn: u64,
    /// Write the payload's bytes into a file; `-` for standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "encoding")]
    pub out: Option<PathBuf>,
    /// Write a proof of the journal with its payload and signature; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerVerify {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// Number of the journal.
    pub jsn: u64,
    /// The payload that the journal should have.
    #[arg(long, value_name = "VALUE")]
    pub data: Option<String>,
    /// Let the coordinator verify, and believe its word.
    #[arg(long)]
    pub server: bool,
    /// Verify by a trusted anchor, as `coppice ledger anchor` writes it: by 8 hashes, without a
    /// checkpoint. The journal must lie below it.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub anchor: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "`coppice ledger verify --anchor FILE` uses the file. It needs --trust once, and no checkpoint later."
)]
pub struct LedgerAnchor {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// The file.
    pub file: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerJournals {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// The first journal.
    #[arg(long, value_name = "JSN", default_value_t = 0)]
    pub from: u64,
    /// At most this many journals [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Show payloads, too.
    #[arg(long)]
    pub payloads: bool,
}

#[derive(Clone, Debug, Args)]
pub struct LedgerLineage {
    /// The ledger: its name, or `0x` and its id.
    pub ledger: String,
    /// The clue.
    pub clue: String,
    /// At most this many journals, the newest ones [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Show payloads, too.
    #[arg(long)]
    pub payloads: bool,
    /// Write a proof that these are all, or the newest, with their signatures; `-` for standard
    /// output.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
}

/// Changes of members. Each is a journal that a member signs.
#[derive(Clone, Debug, Subcommand)]
pub enum LedgerMember {
    /// Admit a member. Owners may.
    Add {
        /// The ledger.
        ledger: String,
        /// The new member: FILE or NAME=FILE, of its public key.
        #[arg(value_name = "[NAME=]FILE")]
        new: String,
        /// Its roles, with commas between them.
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["writer", "reader"])]
        roles: Vec<MemberRole>,
        #[command(flatten)]
        signer: Signer,
    },
    /// Set the roles of a member. Owners may.
    Roles {
        /// The ledger.
        ledger: String,
        /// The member.
        name: String,
        /// Its roles from now on, with commas between them.
        #[arg(long, value_enum, value_delimiter = ',', required = true)]
        roles: Vec<MemberRole>,
        #[command(flatten)]
        signer: Signer,
    },
    /// Change the key of a member or agent. Owners, the member itself and an agent's principal may.
    Key {
        /// The ledger.
        ledger: String,
        /// The member or agent.
        name: String,
        /// File of the new private key, which agrees to the change.
        #[arg(long, value_name = "FILE")]
        new_key: PathBuf,
        #[command(flatten)]
        signer: Signer,
    },
    /// End the key of a member or agent. Those who may change it may.
    Revoke {
        /// The ledger.
        ledger: String,
        /// The member or agent.
        name: String,
        #[command(flatten)]
        signer: Signer,
    },
    /// Mark a member's journals as disputed from a number on: its key was stolen.
    Dispute {
        /// The ledger.
        ledger: String,
        /// The member or agent.
        name: String,
        /// The first disputed journal.
        #[arg(long, value_name = "JSN")]
        from: u64,
        #[command(flatten)]
        signer: Signer,
    },
    /// Let an agent append for the signer.
    Agent {
        /// The ledger.
        ledger: String,
        /// The agent: FILE or NAME=FILE, of its public key.
        #[arg(value_name = "[NAME=]FILE")]
        new: String,
        /// All clues of its journals begin with this, and each journal has one [default: any
        /// journals].
        #[arg(long, value_name = "PREFIX", default_value = "")]
        prefix: String,
        /// The journal from which on it may not append any more [default: no end].
        #[arg(long, value_name = "JSN")]
        until: Option<u64>,
        #[command(flatten)]
        signer: Signer,
    },
}
