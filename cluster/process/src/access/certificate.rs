//! What a certificate says of its holder. It was verified by TLS before it is read here.

use std::fmt;

use coppice_types::text::is_control;
use coppice_verify::{
    hash::sha256,
    principal::{WHO_BYTES_MAX, bounded},
};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    objects::{oid_registry, oid2abbrev},
    prelude::{AttributeTypeAndValue, FromDer, GeneralName, RelativeDistinguishedName, X509Certificate, X509Name},
};

/// A URI with this beginning, among the subject's alternative names, says a role.
pub const ROLE_URI: &str = "urn:coppice:role:";
/// Longest subject, in bytes; a longer one is cut and ends with the beginning of its hash.
const SUBJECT_BYTES_MAX: usize = 256;

/// What the holder of a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads records, with their history and proofs.
    Reader,
    /// Reads and writes records.
    Writer,
    /// Prunes, rolls back, pins, moves leaderships; reads no records.
    Operator,
    /// Reads everything, the batches of the ledger among it.
    Auditor,
    /// A node of the cluster.
    Node,
    /// A coordinator of the cluster.
    Coordinator,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Reader, Self::Writer, Self::Operator, Self::Auditor, Self::Node, Self::Coordinator];

    /// As in certificates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Operator => "operator",
            Self::Auditor => "auditor",
            Self::Node => "node",
            Self::Coordinator => "coordinator",
        }
    }
}

/// A set of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// These.
    #[must_use]
    pub const fn of(roles: &[Role]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < roles.len() {
            bits |= 1 << roles[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// Whether one of them is also in the other set.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.meets(Self::of(&[*role])))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Role::name).collect::<Vec<_>>().join(", "))
    }
}

/// Who holds a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The subject's name, as [`subject_of`] writes it.
    pub subject: String,
    /// The serial number, in hex.
    pub serial: String,
    /// SHA-256 of the certificate, in hex.
    pub fingerprint: String,
    /// The roles that it says; others than are known here are none.
    pub roles: Roles,
}

impl Identity {
    /// Reads a certificate. One that can't be read has no role.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let fingerprint = hex::encode(sha256(certificate).0);
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            return Self { subject: String::new(), serial: String::new(), fingerprint, roles: Roles::NONE };
        };
        let subject = bounded(&subject_of(parsed.subject()), SUBJECT_BYTES_MAX);
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let said: Vec<Role> = names.filter_map(role_of).collect();
        Self { subject, serial: hex::encode(parsed.raw_serial()), fingerprint, roles: Roles::of(&said) }
    }

    /// What its holder is known by: the subject, or the certificate if it has none; at most [`WHO_BYTES_MAX`] bytes.
    #[must_use]
    pub fn name(&self) -> String {
        match self.subject.as_str() {
            "" => format!("certificate {}", self.fingerprint),
            subject => bounded(subject, WHO_BYTES_MAX),
        }
    }
}

/// A subject as text: `CN=alice, O=Acme + OU=ops`, each value escaped as RFC 4514 says, so that no two subjects are the same text.
///
/// Characters that are not shown are written in hex, too. A value that is not UTF-8 is `#` and hex.
fn subject_of(name: &X509Name<'_>) -> String {
    let attribute = |attribute: &AttributeTypeAndValue<'_>| {
        let kind = attribute.attr_type();
        let kind = oid2abbrev(kind, oid_registry()).map_or_else(|_| kind.to_id_string(), str::to_owned);
        let value = attribute.as_str().map_or_else(|_| format!("#{}", hex::encode(attribute.as_slice())), escaped);
        format!("{kind}={value}")
    };
    let parts = |parts: &RelativeDistinguishedName<'_>| parts.iter().map(attribute).collect::<Vec<_>>().join(" + ");
    name.iter_rdn().map(parts).collect::<Vec<_>>().join(", ")
}

/// A value of a subject, escaped.
fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut out = String::with_capacity(value.len());
    for (at, c) in value.chars().enumerate() {
        let outer = (c == ' ' && (at == 0 || at == last)) || (c == '#' && at == 0);
        if is_control(c) {
            let mut bytes = [0; 4];
            out.extend(c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:02X}")));
            continue;
        }
        if outer || matches!(c, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn role_of(name: &GeneralName<'_>) -> Option<Role> {
    let GeneralName::URI(uri) = name else { return None };
    let said = uri.strip_prefix(ROLE_URI)?;
    Role::ALL.into_iter().find(|role| role.name() == said)
}
