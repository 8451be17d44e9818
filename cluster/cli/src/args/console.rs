//! Options of `console`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Prints `ready URL`: open it in a browser. The URL holds a secret, which lets in nobody else. Ctrl-C stops it.\n\
                  A browser keeps the last checkpoint that it saw by address and port: name a port with --listen to compare with it."
)]
pub struct Console {
    /// Address to listen on, which must be of this machine alone (127.0.0.1 or ::1); port 0 takes a
    /// free one. From elsewhere, forward the port by ssh.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// A C2SP policy that names witnesses: the pages show as proven only what its quorum has
    /// cosigned. It may also name the ledger's key.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}
