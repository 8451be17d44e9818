//! The settings of connections to etcd: endpoints, credentials and time limits.

use std::{fmt, sync::Arc, time::Duration};

use coppice_types::ClusterId;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::{Error, TEXT_BYTES_MAX};

/// Most endpoints that may be named.
pub const ENDPOINTS_MAX: usize = 16;
/// The shortest interval of pings that etcd accepts.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of connections to etcd.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port` of each member.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, as `<prefix>/<cluster id>/`.
    pub prefix: String,
    pub cluster: ClusterId,
    /// The certificates, for `https` endpoints.
    pub tls: Option<EtcdTlsSource>,
    /// User name and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// Longest time of a call.
    pub call_max: Duration,
    /// Longest wait for one of several members before the next one is asked.
    pub attempt_max: Duration,
    /// Longest time for which a campaign or a watch keeps trying while etcd does not answer.
    pub outage_max: Duration,
}

/// Returns the certificates in force. When they change, new connections are made.
pub type EtcdTlsSource = Arc<dyn Fn() -> Arc<EtcdTls> + Send + Sync>;

/// The certificates for both directions, in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authorities that may have signed etcd's certificate.
    pub ca: Vec<u8>,
    /// The certificate and the key that etcd is shown.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, if it differs from the endpoint's host.
    pub domain: Option<String>,
}

impl EtcdOptions {
    /// Plain connections, the prefix `/coppice`, and time limits that suit an etcd nearby.
    #[must_use]
    pub fn new(endpoints: Vec<String>, cluster: ClusterId) -> Self {
        Self {
            endpoints,
            prefix: "/coppice".to_owned(),
            cluster,
            tls: None,
            user: None,
            call_max: Duration::from_secs(2),
            attempt_max: Duration::from_millis(500),
            outage_max: Duration::from_secs(10),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            return Err(Error::Invalid("number of etcd endpoints"));
        }
        if self.prefix.len() > TEXT_BYTES_MAX {
            return Err(Error::Invalid("prefix"));
        }
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        if !self.endpoints.iter().all(|url| url.starts_with(scheme) && url.len() > scheme.len()) {
            return Err(Error::Invalid("etcd endpoint (with TLS they are https://..., without http://...)"));
        }
        Ok(())
    }

    pub(super) fn connect(&self) -> ConnectOptions {
        let mut connect = ConnectOptions::new()
            .with_require_leader(true)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_connect_timeout(self.attempt_max);
        if let Some((name, password)) = &self.user {
            connect = connect.with_user(name, password).with_auto_token_refresh(true);
        }
        connect
    }
}

impl EtcdTls {
    /// A source that always returns these certificates.
    #[must_use]
    pub fn fixed(self) -> EtcdTlsSource {
        let fixed = Arc::new(self);
        Arc::new(move || Arc::clone(&fixed))
    }

    pub(super) fn options(&self) -> TlsOptions {
        let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        match &self.domain {
            Some(domain) => options.domain_name(domain),
            None => options,
        }
    }
}

/// Leaves out the password and the key.
impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("cluster", &self.cluster)
            .field("tls", &self.tls.is_some())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("domain", &self.domain).finish_non_exhaustive()
    }
}
