//! The holder of a certificate. TLS has verified the certificate before it is read here.

use coppice_proto::certificate::Said;
pub use coppice_proto::certificate::{MEMBER_URI, NAME_URI, ROLE_URI, Role, Roles};
use coppice_types::text::is_control;
use coppice_verify::{
    hash::sha256,
    principal::{WHO_BYTES_MAX, bounded},
};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    objects::{oid_registry, oid2abbrev},
    prelude::{AttributeTypeAndValue, FromDer, RelativeDistinguishedName, X509Certificate, X509Name},
};

/// Longest subject, in bytes. A longer one is cut, and ends with the beginning of its hash.
const SUBJECT_BYTES_MAX: usize = 256;

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The subject's name, as `subject_of` writes it.
    pub subject: String,
    /// The serial number, in hex.
    pub serial: String,
    /// The SHA-256 of the certificate, in hex.
    pub fingerprint: String,
    /// The roles that the certificate states. Unknown roles are ignored.
    pub roles: Roles,
    /// The process that the certificate is for; `None` if it names none, or several.
    pub process: Option<String>,
    /// The member of ledgers that the certificate is for; `None` if it names none, or several.
    pub member: Option<String>,
}

impl Identity {
    /// Reads a certificate. One that can't be read has no roles.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let fingerprint = hex::encode(sha256(certificate).0);
        let parsed = X509Certificate::from_der(certificate).ok().zip(Said::of(certificate));
        let Some(((_, parsed), Said { serial, roles, name: process, member, .. })) = parsed else {
            let (subject, serial) = (String::new(), String::new());
            return Self { subject, serial, fingerprint, roles: Roles::NONE, process: None, member: None };
        };
        let subject = bounded(&subject_of(parsed.subject()), SUBJECT_BYTES_MAX);
        Self { subject, serial, fingerprint, roles, process, member }
    }

    /// The name of the holder: the subject, or the certificate's fingerprint if there is no
    /// subject. At most [`WHO_BYTES_MAX`] bytes.
    #[must_use]
    pub fn name(&self) -> String {
        match self.subject.as_str() {
            "" => format!("certificate {}", self.fingerprint),
            subject => bounded(subject, WHO_BYTES_MAX),
        }
    }
}

/// A subject as text: `CN=alice, O=Acme + OU=ops`. Values are escaped as in RFC 4514, so that
/// different subjects never have the same text.
///
/// Characters that are not shown as themselves are written in hex, too. A value that is not UTF-8
/// becomes `#` and hex.
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

/// Escapes a value of a subject.
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
