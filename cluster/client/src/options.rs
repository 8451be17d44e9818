//! The settings of a client.

use std::time::Duration;

use coppice_verify::note::VerifierKey;

use crate::tls::{Expected, Role, Tls};

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a coordinator listens: `http://host:port`, `https://host:port`, or `host:port`. The
    /// short form means `https` if [`tls`](Self::tls) is set, else `http`. Commas separate several
    /// coordinators.
    pub endpoint: String,
    /// Certificates for `https`. With [`Tls::Files`], the client must be made within a tokio
    /// runtime.
    pub tls: Option<Tls>,
    /// The process that must answer, by its certificate: a coordinator by default.
    /// [`Expected::Anybody`] is for a proxy that terminates TLS, or for a server with a
    /// certificate of a public authority. Then any holder of a certificate that names the host and
    /// comes from the authorities in [`tls`](Self::tls) can pose as the server.
    pub expected: Expected,
    /// Longest wait for the answer to one attempt, and for the next message of a stream. Default:
    /// 30 s.
    pub attempt_timeout: Duration,
    /// Longest time from the start of a call to its last repetition, while the cluster is
    /// unavailable. Default: 5 s.
    pub patience: Duration,
    /// The ledger's public key. If it is set, no commit and no read of keys or ranges is accepted
    /// without a proof.
    pub trust: Option<VerifierKey>,
}

impl Options {
    /// The default settings, for this endpoint.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            tls: None,
            expected: Expected::Any(Role::Coordinator),
            attempt_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            trust: None,
        }
    }
}
