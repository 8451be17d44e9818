//! The files of a client for connections by TLS.

use std::path::PathBuf;

use coppice_client::Tls;

/// The authority that a client trusts, and the certificate that it shows.
#[derive(Clone, Debug, clap::Args)]
pub struct Files {
    /// The authority of the coordinators' certificates (PEM), for `https`.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The client's certificate (PEM); its roles are reader and writer.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "client_key"])]
    client_cert: Option<PathBuf>,
    /// The client's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl Files {
    pub fn tls(&self) -> Option<Tls> {
        let identity = self.client_cert.clone().zip(self.client_key.clone());
        Some(Tls::Files { ca: self.ca.clone()?, identity })
    }
}
