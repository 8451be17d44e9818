//! The response of an authority: a token, and the part of it that the signature covers.

use std::collections::BTreeSet;

use const_oid::ObjectIdentifier;

use crate::{
    Error, Info, Refusal, TOKEN_BYTES_MAX,
    der::{self, BIT_STRING, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, Reader, SEQUENCE, SET, UTF8_STRING},
    digest::{Algorithm, Digest},
    oids,
};

/// Most certificates of a token that are looked at.
const CERTIFICATES_MAX: usize = 16;

/// A time-stamp token: a CMS `SignedData` over a [`Info`]. Nothing of it is verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    der: Vec<u8>,
    info: Info,
}

impl Token {
    /// Reads what an authority answered (a `TimeStampResp`), or a token alone: at most
    /// [`TOKEN_BYTES_MAX`] bytes, all of them DER.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the authority granted no token. Another error names what is too long,
    /// malformed, or not as RFC 3161 demands.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > TOKEN_BYTES_MAX {
            return Err(Error::TooLong { bytes: bytes.len() });
        }
        let mut outer = Reader::new(bytes, "response");
        let whole = outer.element(SEQUENCE)?;
        outer.end()?;
        let token = match Reader::new(whole.contents, "response").peek() {
            Some(OBJECT_IDENTIFIER) => whole.whole,
            _ => granted(whole.contents)?,
        };
        let info = Info::parse(Signed::parse(token)?.content)?;
        Ok(Self { der: token.to_vec(), info })
    }

    /// The bytes of the token alone: what [`Self::parse`] reads again.
    #[must_use]
    pub fn as_der(&self) -> &[u8] {
        &self.der
    }

    /// The bytes of a response that grants the token, as tools keep them in `.tsr` files.
    #[must_use]
    pub fn to_response(&self) -> Vec<u8> {
        let status = der::element(SEQUENCE, &[&der::element(INTEGER, &[&[0]])]);
        der::element(SEQUENCE, &[&status, &self.der])
    }

    /// The certificates that the token brings, in DER. Nothing of them is verified.
    #[must_use]
    pub fn certificates(&self) -> Vec<&[u8]> {
        // The constructor has parsed the same bytes.
        self.signed().map(|signed| signed.certificates).unwrap_or_default()
    }

    /// The token with these certificates in addition to its own. They lie outside of the signed
    /// part.
    pub(crate) fn with_certificates(&self, more: &[&[u8]]) -> Result<Self, Error> {
        let mut token = Reader::new(&self.der, "token").nested(SEQUENCE, "token")?;
        let kind = token.element(OBJECT_IDENTIFIER)?.whole;
        let mut data = token.nested(der::context(0), "signed data")?.nested(SEQUENCE, "signed data")?;
        // Version, digests and content.
        let head = [data.any()?.whole, data.any()?.whole, data.any()?.whole].concat();
        let mut all: BTreeSet<&[u8]> = more.iter().copied().collect();
        if let Some(own) = data.optional(der::context(0))? {
            let mut own = Reader::new(own.contents, "certificates");
            while !own.is_empty() {
                all.insert(own.any()?.whole);
            }
        }
        let mut tail = Vec::new();
        while !data.is_empty() {
            tail.extend_from_slice(data.any()?.whole);
        }
        let certificates = der::element(der::context(0), &all.into_iter().collect::<Vec<_>>());
        let data = der::element(SEQUENCE, &[&head, &certificates, &tail]);
        Self::parse(&der::element(SEQUENCE, &[kind, &der::element(der::context(0), &[&data])]))
    }

    /// The statement of the token, unverified.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The data that the token's signature covers and names.
    pub(crate) fn signed(&self) -> Result<Signed<'_>, Error> {
        Signed::parse(&self.der)
    }
}

/// The token of a `TimeStampResp` with these contents.
fn granted(contents: &[u8]) -> Result<&[u8], Error> {
    let mut response = Reader::new(contents, "response");
    let mut info = response.nested(SEQUENCE, "status")?;
    let status = info.number()?;
    let mut texts = Vec::new();
    if let Some(element) = info.optional(SEQUENCE)? {
        let mut strings = Reader::new(element.contents, "status text");
        while !strings.is_empty() {
            texts.push(strings.element(UTF8_STRING)?.contents);
        }
    }
    let failure = info.optional(BIT_STRING)?.map(|element| first_bit(element.contents));
    info.end()?;
    // 0 is granted, 1 is granted with modifications. Those are judged by the rules for tokens.
    if status > 1 {
        return Err(Error::Refused(Refusal::new(status, failure.flatten(), &texts)));
    }
    if response.is_empty() {
        return Err(Error::NoToken);
    }
    let token = response.element(SEQUENCE)?;
    response.end()?;
    Ok(token.whole)
}

/// The number of the first bit that is set in a BIT STRING.
fn first_bit(contents: &[u8]) -> Option<u32> {
    let (_unused, bytes) = contents.split_first()?;
    let byte = bytes.iter().position(|byte| *byte != 0)?;
    u32::try_from(byte).ok()?.checked_mul(8)?.checked_add(bytes[byte].leading_zeros())
}

/// The data that a token's signature covers and names.
pub(crate) struct Signed<'a> {
    /// The bytes of the `TSTInfo`.
    pub content: &'a [u8],
    /// The certificates that the token brings.
    pub certificates: Vec<&'a [u8]>,
    /// How the signer is named outside of the signature.
    pub signer: Issued<'a>,
    /// The hash function of the message digest and the signature.
    pub digest: Digest,
    /// The signed attributes as they are signed.
    pub attributes: Vec<u8>,
    /// The attribute that names the type of the content.
    pub content_type: ObjectIdentifier,
    /// The attribute with the digest of the content.
    pub message_digest: &'a [u8],
    /// The first entry of the attribute that names the signer's certificate.
    pub certificate: CertificateIdentifier<'a>,
    pub algorithm: ObjectIdentifier,
    pub signature: &'a [u8],
}

/// The name of a certificate by its issuer and serial number.
#[derive(Clone, Copy)]
pub(crate) struct Issued<'a> {
    /// The DER of the issuer's name.
    pub issuer: &'a [u8],
    /// The contents of the serial number.
    pub serial: &'a [u8],
}

/// How the signer's certificate is named inside the signature: `ESSCertIDv2` of RFC 5035.
pub(crate) struct CertificateIdentifier<'a> {
    pub digest: Digest,
    pub hash: &'a [u8],
    pub issued: Option<Issued<'a>>,
}

impl<'a> Signed<'a> {
    fn parse(token: &'a [u8]) -> Result<Self, Error> {
        let mut outer = Reader::new(token, "token");
        let mut token = outer.nested(SEQUENCE, "token")?;
        outer.end()?;
        if token.oid()? != oids::SIGNED_DATA {
            return Err(Error::Malformed { field: "type of the token" });
        }
        let mut explicit = token.nested(der::context(0), "signed data")?;
        token.end()?;
        let mut data = explicit.nested(SEQUENCE, "signed data")?;
        explicit.end()?;
        if data.number()? != 3 {
            return Err(Error::Malformed { field: "version of the signed data" });
        }
        // The digests of all signers; the one signer names its own.
        data.element(SET)?;
        let content = content(&mut data)?;
        let certificates = certificates(&mut data)?;
        data.optional(der::context(1))?;
        let mut signers = data.nested(SET, "signer")?;
        data.end()?;
        let mut count = 0;
        let mut rest = signers.clone();
        while !rest.is_empty() {
            rest.any()?;
            count += 1;
        }
        if count != 1 {
            return Err(Error::Signers { count });
        }
        Self::signer(signers.nested(SEQUENCE, "signer")?, content, certificates)
    }

    /// Reads the one `SignerInfo`.
    fn signer(mut info: Reader<'a>, content: &'a [u8], certificates: Vec<&'a [u8]>) -> Result<Self, Error> {
        info.number()?;
        // A signer that is named by its key has another tag here, which `openssl ts` refuses too.
        let mut identity = info.nested(SEQUENCE, "signer")?;
        let signer = Issued { issuer: identity.element(SEQUENCE)?.whole, serial: identity.integer()? };
        identity.end()?;
        let digest = Digest::read(&mut info, "digests")?;
        let attributes = info.optional(der::context(0))?;
        let attributes = attributes.ok_or(Error::Malformed { field: "signed attributes" })?;
        let algorithm = Algorithm::read(&mut info)?;
        if !algorithm.is_plain {
            return Err(Error::Algorithm { algorithm: algorithm.name, purpose: "signatures" });
        }
        let signature = info.element(OCTET_STRING)?.contents;
        // Unsigned attributes say nothing that could be believed.
        info.optional(der::context(1))?;
        info.end()?;

        let mut content_type = value(attributes.contents, &oids::CONTENT_TYPE, "content type")?;
        let mut message_digest = value(attributes.contents, &oids::MESSAGE_DIGEST, "message digest")?;
        let certificate = value(attributes.contents, &oids::SIGNING_CERTIFICATE_V2, "signing certificate, version 2")?;
        // The signature is over a SET, whose place in the token has another tag.
        let mut signed = attributes.whole.to_vec();
        signed[0] = SET;
        Ok(Self {
            content,
            certificates,
            signer,
            digest,
            attributes: signed,
            content_type: content_type.oid()?,
            message_digest: message_digest.element(OCTET_STRING)?.contents,
            certificate: certificate_identifier(certificate)?,
            algorithm: algorithm.name,
            signature,
        })
    }
}

/// Takes the `EncapsulatedContentInfo`.
fn content<'a>(data: &mut Reader<'a>) -> Result<&'a [u8], Error> {
    let mut encapsulated = data.nested(SEQUENCE, "content")?;
    if encapsulated.oid()? != oids::TST_INFO {
        return Err(Error::Malformed { field: "type of the content" });
    }
    let mut explicit = encapsulated.nested(der::context(0), "content")?;
    encapsulated.end()?;
    let content = explicit.element(OCTET_STRING)?.contents;
    explicit.end()?;
    Ok(content)
}

/// Takes the certificates, as far as there are any. Those of other kinds than X.509 are left out.
fn certificates<'a>(data: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, Error> {
    let mut certificates = Vec::new();
    if let Some(set) = data.optional(der::context(0))? {
        let mut set = Reader::new(set.contents, "certificates");
        while !set.is_empty() {
            let element = set.any()?;
            if element.tag == SEQUENCE {
                certificates.push(element.whole);
            }
        }
    }
    if certificates.len() > CERTIFICATES_MAX {
        return Err(Error::Certificates { problem: "a token may bring 16" });
    }
    Ok(certificates)
}

/// The one value of a signed attribute that stands there once.
fn value<'a>(attributes: &'a [u8], name: &ObjectIdentifier, attribute: &'static str) -> Result<Reader<'a>, Error> {
    let mut attributes = Reader::new(attributes, "signed attributes");
    let (mut found, mut count) = (None, 0);
    while !attributes.is_empty() {
        let mut fields = attributes.nested(SEQUENCE, "signed attributes")?;
        let is_wanted = fields.oid()? == *name;
        let mut values = fields.nested(SET, "signed attributes")?;
        fields.end()?;
        while !values.is_empty() {
            let value = values.any()?;
            if is_wanted {
                found = Some(Reader::new(value.whole, attribute));
                count += 1;
            }
        }
    }
    match found {
        Some(value) if count == 1 => Ok(value),
        _ => Err(Error::Attribute { attribute, count }),
    }
}

/// Reads the first `ESSCertIDv2` of a `SigningCertificateV2`. Later ones name certificates of the
/// chain, which is judged by itself.
fn certificate_identifier(mut value: Reader<'_>) -> Result<CertificateIdentifier<'_>, Error> {
    const FIELD: &str = "signing certificate, version 2";
    let mut fields = value.nested(SEQUENCE, FIELD)?;
    let mut identifiers = fields.nested(SEQUENCE, FIELD)?;
    fields.optional(SEQUENCE)?;
    fields.end()?;
    let mut identifier = identifiers.nested(SEQUENCE, FIELD)?;
    // SHA-256 is the default, which DER leaves out; it is taken all the same.
    let digest = match identifier.peek() {
        Some(SEQUENCE) => Digest::read(&mut identifier, "names of certificates")?,
        _ => Digest::Sha256,
    };
    let hash = identifier.element(OCTET_STRING)?.contents;
    let issued = match identifier.optional(SEQUENCE)? {
        None => None,
        Some(element) => {
            let mut fields = Reader::new(element.contents, FIELD);
            let mut names = fields.nested(SEQUENCE, FIELD)?;
            let mut name = names.nested(der::context(4), FIELD)?;
            names.end()?;
            let issued = Issued { issuer: name.element(SEQUENCE)?.whole, serial: fields.integer()? };
            name.end()?;
            fields.end()?;
            Some(issued)
        }
    };
    identifier.end()?;
    Ok(CertificateIdentifier { digest, hash, issued })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(fields: &[&[u8]]) -> Result<Token, Error> {
        Token::parse(&der::element(SEQUENCE, &[&der::element(SEQUENCE, fields)]))
    }

    #[test]
    fn refusals_are_told() {
        let text = der::element(SEQUENCE, &[&[0x0c, 4, b'B', b'u', b's', 7], &[0x0c, 1, b'!']]);
        let Err(Error::Refused(refusal)) = response(&[&[2, 1, 2], &text, &[3, 2, 0, 0x20]]) else {
            panic!("no refusal")
        };
        assert_eq!((refusal.status(), refusal.failure(), refusal.text()), (2, Some(2), "Bus\\x07; !"));
        let Err(Error::Refused(refusal)) = response(&[&[2, 1, 5], &[3, 4, 0, 0, 0, 0x40]]) else {
            panic!("no refusal")
        };
        assert_eq!(refusal.to_string(), "revocation has occurred, information not available");
        assert_eq!(response(&[&[2, 1, 0]]), Err(Error::NoToken));
        assert_eq!(response(&[&[2, 1, 0xff]]), Err(Error::Malformed { field: "status" }));
        assert_eq!(response(&[&[2, 1, 2], &[0x0c, 0]]), Err(Error::Malformed { field: "status" }));
        assert!(matches!(response(&[&[2, 1, 2], &[3, 0]]), Err(Error::Refused(_))));
    }

    #[test]
    fn length_is_bounded() {
        let bytes = vec![0; TOKEN_BYTES_MAX + 1];
        assert_eq!(Token::parse(&bytes), Err(Error::TooLong { bytes: TOKEN_BYTES_MAX + 1 }));
    }
}
