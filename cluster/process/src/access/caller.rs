//! The caller of a request: the name that was authenticated, and the coordinator that vouched for
//! it.
//!
//! A forwarded request arrives with the certificate of the coordinator that forwards it. That
//! coordinator adds the name of its own caller to the metadata ([`CALLER`]). The name is believed
//! because the certificate has the role `coordinator`. The guard refuses these entries from all
//! other certificates. Without TLS no name is authenticated, so the entry is ignored there, and a
//! caller is the address of its connection.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use axum::http::HeaderMap;
use coppice_types::text::is_control;
use coppice_verify::principal::{self, UNAUTHENTICATED, WHO_BYTES_MAX, bounded};
use tonic::metadata::{MetadataMap, MetadataValue};

use super::log::AccessLog;
use crate::{
    identity::{Identity, Role, Roles},
    peer::Peer,
};

/// The metadata entry that marks a request as forwarded by another coordinator.
pub const FORWARDED: &str = "coppice-forwarded";
/// The metadata entry with the name of the caller for whom a coordinator forwards a request.
pub const CALLER: &str = "coppice-caller-bin";

/// The name of a caller. Quotas count by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// The subject of a certificate, in at most [`WHO_BYTES_MAX`] bytes.
    Subject(String),
    /// The address of a connection without TLS.
    Address(IpAddr),
    /// A connection within this process.
    InProcess,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subject(subject) => f.write_str(subject),
            Self::Address(address) => address.fmt(f),
            Self::InProcess => f.write_str("in-process"),
        }
    }
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Name,
    /// The subject of the coordinator that vouched for the name; `None` if the caller connected to
    /// this process directly.
    pub voucher: Option<String>,
    /// The address of the connection. If a coordinator vouched, it is that coordinator's.
    pub address: Option<SocketAddr>,
    /// Whether another coordinator has forwarded the request.
    pub forwarded: bool,
}

impl Caller {
    /// Reads the caller from the parts of a request.
    #[must_use]
    pub fn of(extensions: &tonic::Extensions, metadata: &MetadataMap) -> Self {
        let peer = extensions.get::<Peer>();
        let address = peer.and_then(|peer| peer.address);
        let forwarded = metadata.get(FORWARDED).is_some();
        let Some(identity) = peer.and_then(|peer| peer.identity.as_deref()) else {
            let name = address.map_or(Name::InProcess, |address| Name::Address(address.ip().to_canonical()));
            return Self { name, voucher: None, address, forwarded };
        };
        let own = identity.name();
        match vouched(identity, metadata) {
            Some(name) => Self { name: Name::Subject(name), voucher: Some(own), address, forwarded },
            None => Self { name: Name::Subject(own), voucher: None, address, forwarded },
        }
    }

    /// The caller of a request, and the log for its actions. In simulations, there is no log.
    #[must_use]
    pub fn from<T>(request: &tonic::Request<T>) -> (Self, Option<AccessLog>) {
        (Self::of(request.extensions(), request.metadata()), request.extensions().get().cloned())
    }

    /// The authenticated subject; `None` without TLS.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        match &self.name {
            Name::Subject(subject) => Some(subject),
            Name::Address(_) | Name::InProcess => None,
        }
    }

    /// The text for the header of an operation: the authenticated name, followed by the claim.
    /// `None` if the claim is too long.
    #[must_use]
    pub fn says(&self, claim: &str) -> Option<String> {
        principal::says(self.subject().unwrap_or(UNAUTHENTICATED), claim)
    }

    /// Adds the metadata that vouches for this caller, for a coordinator that forwards a request.
    pub fn vouch(&self, metadata: &mut MetadataMap) {
        metadata.insert(FORWARDED, MetadataValue::from_static("1"));
        if let Some(subject) = self.subject() {
            metadata.insert_bin(CALLER, MetadataValue::from_bytes(subject.as_bytes()));
        }
    }
}

/// Whether the metadata has entries that only a coordinator may send.
pub(super) fn claims_to_forward(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED) || headers.contains_key(CALLER)
}

/// The name that a coordinator vouches for.
fn vouched(identity: &Identity, metadata: &MetadataMap) -> Option<String> {
    if !identity.roles.meets(Roles::of(&[Role::Coordinator])) {
        return None;
    }
    let bytes = metadata.get_bin(CALLER)?.to_bytes().ok()?;
    let shown = |c: char| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c };
    let name: String = std::str::from_utf8(&bytes).ok()?.chars().map(shown).collect();
    (!name.is_empty()).then(|| bounded(&name, WHO_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn identity(subject: &str, roles: &[Role]) -> Identity {
        let (serial, fingerprint) = ("01".to_owned(), "ab".repeat(32));
        Identity {
            subject: subject.to_owned(),
            serial,
            fingerprint,
            roles: Roles::of(roles),
            process: None,
            member: None,
        }
    }

    fn caller(address: Option<&str>, identity: Option<Identity>, metadata: &MetadataMap) -> Caller {
        let mut extensions = tonic::Extensions::default();
        let address = address.map(|text| text.parse().expect("an address"));
        extensions.insert(Peer { address, identity: identity.map(Arc::new), line: None });
        Caller::of(&extensions, metadata)
    }

    /// The metadata that a coordinator sends for this subject.
    fn forwarded(subject: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        let from = caller(None, Some(identity(subject, &[Role::Operator])), &metadata);
        from.vouch(&mut metadata);
        metadata
    }

    #[test]
    fn a_caller_is_named_by_its_subject_or_its_address_or_as_in_process() {
        let nothing = MetadataMap::new();
        let alice = caller(Some("10.0.0.1:7"), Some(identity("CN=alice", &[Role::Writer])), &nothing);
        assert_eq!((alice.name, alice.voucher), (Name::Subject("CN=alice".to_owned()), None));
        let plain = caller(Some("[::ffff:10.0.0.1]:7"), None, &nothing);
        assert_eq!(plain.name, Name::Address("10.0.0.1".parse().expect("an address")), "ports and notations are one");
        assert_eq!(Caller::of(&tonic::Extensions::default(), &nothing).name, Name::InProcess);
        let unnamed = caller(None, Some(identity("", &[])), &nothing);
        assert_eq!(unnamed.subject(), Some(format!("certificate {}", "ab".repeat(32)).as_str()));
    }

    #[test]
    fn a_coordinator_vouches_for_a_caller_and_nobody_else_does() {
        let metadata = forwarded("CN=älice");
        let (subject, address) = ("CN=coordinator-1", Some("10.0.0.2:1"));
        let through = caller(address, Some(identity(subject, &[Role::Coordinator])), &metadata);
        assert_eq!((through.subject(), through.voucher.as_deref()), (Some("CN=älice"), Some(subject)));
        assert!(through.forwarded);
        for role in Role::ALL.into_iter().filter(|role| *role != Role::Coordinator) {
            let liar = caller(address, Some(identity("CN=mallory", &[role])), &metadata);
            assert_eq!((liar.subject(), liar.voucher.as_deref()), (Some("CN=mallory"), None), "{role:?}");
        }
        let plain = caller(address, None, &metadata);
        assert_eq!((plain.subject(), plain.voucher.as_deref()), (None, None), "nobody was authenticated");
    }

    #[test]
    fn a_vouched_name_is_bounded_and_has_nothing_that_is_not_shown() {
        let coordinator = || Some(identity("CN=c", &[Role::Coordinator]));
        let long = caller(None, coordinator(), &forwarded(&"x".repeat(5000)));
        assert!(long.subject().is_some_and(|subject| subject.len() <= WHO_BYTES_MAX), "{long:?}");
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(CALLER, MetadataValue::from_bytes("CN=a\nb".as_bytes()));
        assert_eq!(caller(None, coordinator(), &metadata).subject(), Some("CN=a\u{fffd}b"));
        for nothing in [&b""[..], b"\xff\xfe"] {
            metadata.insert_bin(CALLER, MetadataValue::from_bytes(nothing));
            assert_eq!(caller(None, coordinator(), &metadata).subject(), Some("CN=c"));
        }
    }
}
