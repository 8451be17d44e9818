//! A certificate's statement about its holder: the roles, and the process that it is for.
//!
//! They are URIs among the subject's alternative names: [`ROLE_URI`] followed by a role's name,
//! once for each role, [`NAME_URI`] followed by the name of a node or coordinator, and
//! [`MEMBER_URI`] followed by the name of a member of ledgers, which also gives the role of one. A
//! certificate with two names of one kind counts as one without such a name. Nothing is verified
//! here: TLS does that first, or [`secure`](crate::secure) in the same step.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The beginning of an alternative name (a URI) that states a role.
pub const ROLE_URI: &str = "urn:coppice:role:";
/// The beginning of an alternative name (a URI) that states the process that a certificate is for.
pub const NAME_URI: &str = "urn:coppice:name:";
/// The beginning of an alternative name (a URI) that states the member of ledgers that a
/// certificate is for.
pub const MEMBER_URI: &str = "urn:coppice:member:";
/// Longest name of a member, in bytes. No ledger has a longer one.
const MEMBER_BYTES_MAX: usize = 64;
/// Most characters of a subject; the rest is cut off.
const SUBJECT_CHARS_MAX: usize = 256;

/// The role of a certificate's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads records, with their history and proofs.
    Reader,
    /// Reads and writes records.
    Writer,
    /// Prunes, rolls back, pins, and moves leaderships. Reads no records.
    Operator,
    /// Reads everything, including the batches of the ledger.
    Auditor,
    /// Appends to ledgers of members, and reads those that have it as a member.
    Member,
    /// A member's cosigner, which opens streams for requests to cosign.
    Cosigner,
    /// A node of the cluster.
    Node,
    /// A coordinator of the cluster.
    Coordinator,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 8] = [
        Self::Reader,
        Self::Writer,
        Self::Operator,
        Self::Auditor,
        Self::Member,
        Self::Cosigner,
        Self::Node,
        Self::Coordinator,
    ];

    /// The role's name in certificates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Operator => "operator",
            Self::Auditor => "auditor",
            Self::Member => "member",
            Self::Cosigner => "cosigner",
            Self::Node => "node",
            Self::Coordinator => "coordinator",
        }
    }
}

/// A set of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of these roles.
    #[must_use]
    pub const fn of(roles: &[Role]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < roles.len() {
            bits |= 1 << roles[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// Whether the two sets have a role in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The roles of the set, in the order of [`Role::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.meets(Self::of(&[*role])))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Role::name).collect::<Vec<_>>().join(", "))
    }
}

/// The fields of a certificate that Coppice uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The subject's name, cut off if it is long.
    pub subject: String,
    /// The serial number, in hex.
    pub serial: String,
    /// The roles. Unknown roles are ignored.
    pub roles: Roles,
    /// The name of the process that the certificate is for; `None` if it names none, or several.
    pub name: Option<String>,
    /// The name of the member of ledgers that the certificate is for; `None` if it names none, or
    /// several.
    pub member: Option<String>,
    /// The end of its validity, in seconds since 1970.
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
        let one = |prefix: &str| {
            let mut names = uris.clone().filter_map(|uri| uri.strip_prefix(prefix));
            match (names.next(), names.next()) {
                (Some(name), None) if !name.is_empty() => Some(name.to_owned()),
                _ => None,
            }
        };
        let name = one(NAME_URI);
        let member = one(MEMBER_URI).filter(|member| member.len() <= MEMBER_BYTES_MAX);
        let mut roles: Vec<Role> = uris.clone().filter_map(role_of).collect();
        // The role of a member without its name would open nothing.
        roles.retain(|role| *role != Role::Member);
        roles.extend(member.as_ref().map(|_| Role::Member));
        let ends = parsed.validity().not_after.timestamp();
        let roles = Roles::of(&roles);
        Some(Self { subject, serial: hex(parsed.raw_serial()), roles, name, member, ends })
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
