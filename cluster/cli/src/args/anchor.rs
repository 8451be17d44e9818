//! Options about time stamps: `anchor`, and those of `dev` and `verify`.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::Named;

/// Actions on the anchors of the root log.
#[derive(Clone, Debug, Subcommand)]
pub enum Anchor {
    /// List the anchors of the root log, with the times that their tokens claim.
    List(AnchorList),
    /// Write an anchor's checkpoint and tokens as files for `openssl ts -verify`.
    Export(AnchorExport),
    /// Have the newest checkpoint stamped now.
    Now,
    /// Write a proof of the time stamps around an entry, for `coppice verify --tsa-root`.
    Interval(AnchorInterval),
    /// Ask a time ledger when it took in the checkpoints that a proof of time names.
    Prove(AnchorProve),
}

#[derive(Clone, Debug, Args)]
pub struct AnchorList {
    /// The first entry of the root log that is looked at.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// At most this many anchors.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Writes `checkpoint` (what was stamped), and for each token `token.tsr` and `certificates.pem`; the second token's files are `token-2.tsr` and so on.\n\
                  `openssl ts -verify -data DIR/checkpoint -in DIR/token.tsr -CAfile ROOT.pem` checks a token without Coppice."
)]
pub struct AnchorExport {
    /// The anchor's entry in the root log, or `last`.
    #[arg(value_name = "N")]
    pub entry: String,
    /// The folder for the files, which is made if it is missing.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
#[command(group(clap::ArgGroup::new("entry").required(true).args(["sequence", "version"])))]
pub struct AnchorInterval {
    /// The entry of the root log.
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// The version whose header is the entry: VERSION or EPOCH.VERSION.
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Named>,
    /// Anchors on either side. More than one helps where authorities disagree.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub anchors: u32,
    /// Wait for a proof under a checkpoint that witnesses have cosigned, which may take a moment.
    #[arg(long)]
    pub cosigned: bool,
    /// Write the proof to this file; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub proof: PathBuf,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "--endpoint names the time ledger, which need not be the ledger of the proof. Give the written files to `coppice verify` as --time-proof."
)]
pub struct AnchorProve {
    /// A proof of time by `coppice anchor interval`, of the ledger that asked for stamps.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The folder for the proofs, which is made if it is missing.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// What a verifier demands of time.
#[derive(Clone, Debug, Default, Args)]
#[command(group(clap::ArgGroup::new("believed").args(["tsa_root", "time_ledger"]).multiple(true)))]
pub struct Window {
    /// A proof of the time stamps around the same entry, by `coppice anchor interval`.
    #[arg(long, value_name = "FILE")]
    pub time: Option<PathBuf>,
    /// The roots of a time-stamping authority, as PEM or DER; repeat for several authorities.
    #[arg(long, value_name = "FILE")]
    pub tsa_root: Vec<PathBuf>,
    /// The public key of a time ledger, or `@` and its file; repeat it, each time with a
    /// --time-ledger-root. It counts as an authority.
    #[arg(long, value_name = "VKEY", requires = "time_ledger_root")]
    pub time_ledger: Vec<String>,
    /// The roots of the authority that stamps a time ledger, in the order of --time-ledger.
    #[arg(long, value_name = "FILE", requires = "time_ledger")]
    pub time_ledger_root: Vec<PathBuf>,
    /// A proof of a time ledger, by `coppice anchor prove`; repeat for several.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "time_ledger")]
    pub time_proof: Vec<PathBuf>,
    /// How many authorities must give a bound [default: a majority].
    #[arg(long, value_name = "N", requires = "believed")]
    pub tsa_quorum: Option<NonZeroUsize>,
    /// How far the authorities' times may be off at least, where tokens say less or nothing.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "believed")]
    pub tsa_accuracy: Option<Duration>,
    /// Fail unless both bounds are known and lie no farther apart, as in `10s`.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "believed")]
    pub max_window: Option<Duration>,
}

/// Reads a duration such as `10s`, `1m` or `250ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 10s, 1m or 250ms");
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_and_no_sign() {
        assert_eq!(parse_duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "2", "-2s", "2 fortnights"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
