//! Certificates of an authority that the operator keeps for a cluster, where nobody else issues
//! them.
//!
//! The authority signs for this cluster alone, because a process obeys every holder of its
//! certificates. All keys are ECDSA P-256, as are those of `scripts/certificates.sh`.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

/// The prefix of URIs that state a role; a certificate has one URI for each role.
pub const ROLE_URI: &str = "urn:coppice:role:";
/// The prefix of the URI that names the process that a certificate is for: a node, coordinator or
/// cosigner. There is at most one.
pub const NAME_URI: &str = "urn:coppice:name:";

/// The validity of an authority.
const AUTHORITY_DAYS: i64 = 3650;
/// The validity of a node's or coordinator's certificate.
pub const PROCESS_DAYS: u32 = 30;
/// The validity of a ledger client's certificate. It is longer because a person may have to fetch
/// it.
pub const CLIENT_DAYS: u32 = 90;
/// The validity of a certificate of etcd's own authority. Only etcd and coordinators accept it.
pub const ETCD_DAYS: u32 = 365;
/// An authority is replaced this long before its end, so that no certificate has to end together
/// with it, and clients have time to follow.
pub const AUTHORITY_RENEWED_BEFORE_SECONDS: i64 = 365 * DAY_SECONDS;

const DAY_SECONDS: i64 = 86_400;
/// Certificates begin this long before they are made, because clocks differ.
const BACKDATED_SECONDS: i64 = 3600;

/// The reason why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A host name or the authority's key is invalid.
    #[error("a certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// The clock is off by ages.
    #[error("the time {0} s after 1970 has no date")]
    Time(i64),
}

/// A certificate or authority in PEM, with its private key.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
    /// The end of the validity, in seconds since 1970.
    pub ends: i64,
}

/// Omits the private key.
impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// Makes an authority for the cluster of this name; `now` is in seconds since 1970.
///
/// # Errors
/// If the time is not a date.
pub fn authority(cluster: &str, now: i64) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    let mut params = authority_params(cluster);
    let ends = now + AUTHORITY_DAYS * DAY_SECONDS;
    (params.not_before, params.not_after) = (date(now - BACKDATED_SECONDS)?, date(ends)?);
    Ok(Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem(), ends })
}

/// The holder of a certificate.
#[derive(Clone, Debug)]
pub struct Holder {
    pub name: String,
    /// Host names under which the holder is reached; empty if it is a client only.
    pub hosts: Vec<String>,
    /// Roles of the holder in calls to coordinators and nodes.
    pub roles: Vec<&'static str>,
    /// Whether the holder is the node, coordinator or cosigner of this name.
    pub is_process: bool,
    /// The validity of the certificate.
    pub days: u32,
}

impl Holder {
    /// The URIs for the holder's roles, and for its process name if it is a process.
    #[must_use]
    pub fn uris(&self) -> Vec<String> {
        let name = self.is_process.then(|| format!("{NAME_URI}{}", self.name));
        self.roles.iter().map(|role| format!("{ROLE_URI}{role}")).chain(name).collect()
    }

    /// A certificate is renewed this long before its end: when two thirds of its validity are over.
    /// Pods are replaced then, since each keeps the files it started with.
    #[must_use]
    pub fn renewed_before_seconds(&self) -> i64 {
        self.seconds() / 3
    }

    fn seconds(&self) -> i64 {
        i64::from(self.days) * DAY_SECONDS
    }
}

/// Makes a certificate for client and server authentication.
///
/// # Errors
/// If the authority's key or a host name is invalid.
pub fn certificate(cluster: &str, authority: &Pair, holder: &Holder, now: i64) -> Result<Pair, Error> {
    let issuer = Issuer::new(authority_params(cluster), KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(holder.hosts.as_slice())?;
    for uri in holder.uris() {
        params.subject_alt_names.push(SanType::URI(uri.try_into()?));
    }
    params.distinguished_name = distinguished(&holder.name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    // A certificate can't outlive its authority.
    let ends = (now + holder.seconds()).min(authority.ends);
    (params.not_before, params.not_after) = (date(now - BACKDATED_SECONDS)?, date(ends)?);
    Ok(Pair { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem(), ends })
}

/// Everything that a certificate takes over from its authority: the name, and the key's identifier,
/// which follows from the key.
fn authority_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(&format!("coppice authority of {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Makes a distinguished name; a common name has at most 64 characters.
fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    distinguished
}

fn date(seconds: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::UNIX_EPOCH.checked_add(Duration::seconds(seconds)).ok_or(Error::Time(seconds))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc};

    use coppice_env::Clock;
    use coppice_process::{
        access::{self, AccessLog, Identity, Role, Roles},
        tls::{Expected, Tls},
    };
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};

    use super::*;

    fn now() -> i64 {
        i64::try_from(coppice_env::SystemClock::new().wall_ms() / 1000).expect("it is not long since 1970")
    }

    fn holder(name: &str, host: &str, roles: &[&'static str]) -> Holder {
        let hosts = vec![host.to_owned()];
        Holder { name: name.to_owned(), hosts, roles: roles.to_vec(), is_process: true, days: PROCESS_DAYS }
    }

    fn files(dir: &Path, authority: &Pair, pair: &Pair) -> Tls {
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("a file can be written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
            path
        };
        let (ca, cert) = (write("ca.crt", &authority.certificate), write("tls.crt", &pair.certificate));
        Tls { ca, cert, key: write("tls.key", &pair.key), withdrawn: None }
    }

    fn client(authority: &Pair, pair: &Pair) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).expect("it is PEM");
        roots.add(root).expect("it is an authority");
        let own = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("it is PEM");
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("it is PEM");
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring speaks them")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own], key)
            .expect("certificate and key fit")
    }

    /// Whether a client and a process with these files can connect.
    async fn connects(server: &Tls, client: rustls::ClientConfig, host: &str) -> bool {
        let acceptor = server.acceptor(AccessLog::to_log()).expect("the process can read its files");
        let (near, far) = tokio::io::duplex(1 << 16);
        let name = ServerName::try_from(host.to_owned()).expect("it is a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let (accepted, connected) = tokio::join!(acceptor.accept(None, far), connector.connect(name, near));
        accepted.is_ok() && connected.is_ok()
    }

    #[tokio::test]
    async fn processes_trust_each_other_and_nobody_of_another_authority() {
        let authority = authority("ledger", now()).expect("an authority can be made");
        let other = super::authority("ledger", now()).expect("an authority can be made");
        let make = |authority: &Pair, name: &str| {
            certificate("ledger", authority, &holder(name, &format!("{name}.bank.svc"), &[]), now())
                .expect("it can be made")
        };
        let dir = tempfile::tempdir().expect("a directory can be made");
        let server = files(dir.path(), &authority, &make(&authority, "node"));
        server.client(Expected::Anybody).expect("the process can read its files");
        let fine = || client(&authority, &make(&authority, "coordinator"));
        assert!(connects(&server, fine(), "node.bank.svc").await);
        assert!(!connects(&server, fine(), "elsewhere.bank.svc").await, "the host is not in the certificate");
        let stranger = client(&authority, &make(&other, "coordinator"));
        assert!(!connects(&server, stranger, "node.bank.svc").await, "it has the same names, and another key");
    }

    #[tokio::test]
    async fn an_expired_certificate_is_not_trusted() {
        let authority = authority("ledger", now()).expect("an authority can be made");
        let past = now() - i64::from(PROCESS_DAYS + 1) * DAY_SECONDS;
        let old =
            certificate("ledger", &authority, &holder("node", "node.bank.svc", &[]), past).expect("it can be made");
        assert!(old.ends < now());
        let dir = tempfile::tempdir().expect("a directory can be made");
        let server = files(dir.path(), &authority, &old);
        assert!(!connects(&server, client(&authority, &old), "node.bank.svc").await);
    }

    #[test]
    fn a_certificate_says_its_role_and_name_as_processes_read_them() {
        assert_eq!([ROLE_URI, NAME_URI], [access::ROLE_URI, access::NAME_URI]);
        let authority = authority("ledger", now()).expect("an authority can be made");
        let said = |holder: &Holder| {
            let pair = certificate("ledger", &authority, holder, now()).expect("it can be made");
            Identity::of(&CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("it is PEM"))
        };
        let node = holder("ledger-node-0", "a", &["node"]);
        assert_eq!(said(&node).process.as_deref(), Some("ledger-node-0"));
        assert_eq!(said(&Holder { is_process: false, ..node }).process, None);
        let roles = |roles: &[&'static str]| said(&holder("a", "a", roles)).roles;
        for role in Role::ALL {
            // A member is one by the name that its certificate states, not by a role.
            let counted = if role == Role::Member { Roles::NONE } else { Roles::of(&[role]) };
            assert_eq!(roles(&[role.name()]), counted);
        }
        assert_eq!(roles(&["writer", "operator"]), Roles::of(&[Role::Writer, Role::Operator]));
        assert_eq!(roles(&[]), Roles::NONE);
    }

    #[test]
    fn a_certificate_does_not_outlive_its_authority() {
        let mut authority = authority("ledger", now()).expect("an authority can be made");
        authority.ends = now() + DAY_SECONDS;
        let pair = certificate("ledger", &authority, &holder("node", "a", &[]), now()).expect("it can be made");
        assert_eq!(pair.ends, authority.ends);
    }
}
