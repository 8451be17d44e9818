//! Options of `cosigner`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand};

/// Actions of a member's cosigner.
#[derive(Clone, Debug, Subcommand)]
pub enum Cosigner {
    /// Make the folder of a new cosigner with new keys, and print each public key with its line of
    /// a policy.
    Init(Box<CosignerInit>),
    /// Follow the ledger's log, cosign it, and serve, until Ctrl-C. Prints `ready URL`.
    Run(CosignerDir),
    /// Show what a cosigner has and has signed, whether it runs or not. Exit code 1 if evidence has
    /// halted it.
    Status(CosignerDir),
    /// Write a new state after damage. The cosigner then signs nothing before a peer has said which
    /// of its signatures it saw.
    Recover(CosignerDir),
    /// Accept the key to which the ledger has changed its own, if the settings say `ask`.
    Accept(CosignerAccept),
    /// Go on after a person has seen the evidence that halted the cosigner.
    Resume(CosignerResume),
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "One key serves one folder. Never run two copies of a folder, and never restore one from a backup: make a new cosigner instead."
)]
pub struct CosignerInit {
    /// The new folder.
    pub dir: PathBuf,
    /// The ledger's public key, or `@` and a file that holds it.
    #[arg(long, value_name = "PUBKEY")]
    pub ledger_key: String,
    /// Where a coordinator serves the root log: its `http_listen`. Repeat it for each coordinator.
    #[arg(long, value_name = "URL", required = true)]
    pub log: Vec<String>,
    /// Name of the cosigner's key, for instance `member.example/ledger`.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// The address on which the cosigner serves.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7600")]
    pub listen: SocketAddr,
    /// The URL under which others reach that address [default: http:// and the address].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Public key and URL of another member's cosigner; repeatable.
    #[arg(long, value_names = ["VKEY", "URL"], num_args = 2)]
    pub peer: Vec<String>,
    /// Make an auditor, too, which replays the ledger's journals from this API of a coordinator. It
    /// gets a key of its own, with the name and `/auditor`. Repeat it for each coordinator.
    #[arg(long, value_name = "URL")]
    pub api: Vec<String>,
    /// PEM file of the authority of the API's certificates.
    #[arg(long, value_name = "FILE", requires = "api")]
    pub api_ca: Option<PathBuf>,
    /// PEM file of the certificate that this member shows to the API. It needs the role `auditor`.
    #[arg(long, value_name = "FILE", requires = "api_ca", requires = "api_key")]
    pub api_cert: Option<PathBuf>,
    /// PEM file of the private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "api_cert")]
    pub api_key: Option<PathBuf>,
    /// Make no auditor, although there is --api.
    #[arg(long, requires = "api")]
    pub no_audit: bool,
    /// Open a stream to each --api, on which coordinators ask: they can't reach this member. The
    /// name is that of its certificate, which needs the role `cosigner`.
    #[arg(long, value_name = "NAME", requires = "api", conflicts_with = "url")]
    pub stream: Option<String>,
    /// Sign nothing by a new key of the ledger before `coppice cosigner accept`.
    #[arg(long)]
    pub ask: bool,
}

#[derive(Clone, Debug, Args)]
pub struct CosignerDir {
    /// The folder of the cosigner.
    pub dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct CosignerAccept {
    /// The folder of the cosigner, which must not run.
    pub dir: PathBuf,
    /// The ledger's new public key, or `@` and a file that holds it.
    #[arg(value_name = "PUBKEY")]
    pub key: String,
}

#[derive(Clone, Debug, Args)]
pub struct CosignerResume {
    /// The folder of the cosigner, which must not run.
    pub dir: PathBuf,
    /// The evidence file that halts the cosigner, as `status` names it.
    #[arg(long, value_name = "FILE")]
    pub seen: PathBuf,
}
