//! What a certificate says of its holder: roles, and which process it is for.
//!
//! Both stand in URIs among the subject's alternative names: [`ROLE_URI`] with a role's name behind
//! it, one for each role, and [`NAME_URI`] with the name of a node or coordinator behind it. A
//! certificate with two names is nobody's. Nothing here is verified: TLS does that first, or
//! [`secure`](crate::secure) in the same step.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A URI with this beginning, among the subject's alternative names, says a role.
pub const ROLE_URI: &str = "urn:coppice:role:";
/// A URI with this beginning, among the subject's alternative names, says which process the
/// certificate is for.
pub const NAME_URI: &str = "urn:coppice:name:";
/// No more of a subject is kept.
const SUBJECT_CHARS_MAX: usize = 256;

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

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The subject's name.
    pub subject: String,
    /// The serial number, in hex.
    pub serial: String,
    /// The roles; others than are known here are none.
    pub roles: Roles,
    /// The process that it is for; `None` if it names none, or several.
    pub name: Option<String>,
    /// When it ends, in seconds since 1970.
    pub ends: i64,
}

impl Said {
    /// Reads a certificate; `None` if it cannot be read.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let subject = parsed.subject().to_string().chars().map(shown).take(SUBJECT_CHARS_MAX).collect();
        let names = parsed.subject_alternative_name().ok().flatten();
        let uris = names.iter().flat_map(|names| &names.value.general_names).filter_map(uri);
        let roles: Vec<Role> = uris.clone().filter_map(role_of).collect();
        let mut names = uris.filter_map(|uri| uri.strip_prefix(NAME_URI));
        let name = match (names.next(), names.next()) {
            (Some(name), None) if !name.is_empty() => Some(name.to_owned()),
            _ => None,
        };
        let ends = parsed.validity().not_after.timestamp();
        Some(Self { subject, serial: hex(parsed.raw_serial()), roles: Roles::of(&roles), name, ends })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn uri<'a>(name: &'a GeneralName<'_>) -> Option<&'a str> {
    match name {
        GeneralName::URI(uri) => Some(uri),
        _ => None,
    }
}

fn role_of(uri: &str) -> Option<Role> {
    let said = uri.strip_prefix(ROLE_URI)?;
    Role::ALL.into_iter().find(|role| role.name() == said)
}
