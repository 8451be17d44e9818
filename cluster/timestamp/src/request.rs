//! Requests to an authority.

use const_oid::ObjectIdentifier;

use crate::{
    Error, IMPRINT_BYTES,
    der::{self, BOOLEAN, INTEGER, NULL, OCTET_STRING, SEQUENCE},
    oids,
};

/// Fewest bytes of a nonce.
pub const NONCE_BYTES_MIN: usize = 8;
/// Most bytes of a nonce.
pub const NONCE_BYTES_MAX: usize = 32;

/// A number that no other request has. It shows that an answer is for this request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce {
    /// The contents of a DER INTEGER.
    integer: Vec<u8>,
}

impl Nonce {
    /// Takes from 8 to 32 random bytes as a big-endian number.
    ///
    /// # Errors
    ///
    /// Refuses fewer bytes, which could be guessed, and more.
    pub fn new(random: &[u8]) -> Result<Self, Error> {
        if !(NONCE_BYTES_MIN..=NONCE_BYTES_MAX).contains(&random.len()) {
            return Err(Error::NonceSize { bytes: random.len() });
        }
        let zeros = random.iter().take_while(|byte| **byte == 0).count();
        // The sign is the first bit.
        let mut integer = vec![0];
        integer.extend_from_slice(&random[zeros..]);
        if integer.get(1).is_some_and(|first| first & 0x80 == 0) {
            integer.remove(0);
        }
        Ok(Self { integer })
    }

    /// The contents of the DER INTEGER.
    pub(crate) fn integer(&self) -> &[u8] {
        &self.integer
    }
}

/// A request for a time stamp (`TimeStampReq`).
#[derive(Clone, Debug)]
pub struct Request {
    imprint: [u8; IMPRINT_BYTES],
    nonce: Nonce,
    policy: Option<ObjectIdentifier>,
    certificates: bool,
}

impl Request {
    /// A request for a stamp over bytes whose SHA-256 is `imprint`, by the authority's default
    /// policy, without certificates in the token.
    #[must_use]
    pub fn new(imprint: [u8; IMPRINT_BYTES], nonce: Nonce) -> Self {
        Self { imprint, nonce, policy: None, certificates: false }
    }

    /// Asks for this policy.
    #[must_use]
    pub fn with_policy(self, policy: ObjectIdentifier) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Asks for the signer's certificate in the token (`certReq`).
    #[must_use]
    pub fn with_certificates(self) -> Self {
        Self { certificates: true, ..self }
    }

    /// The nonce, which the answer must have.
    #[must_use]
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// The bytes to post, as [`crate::QUERY_MEDIA_TYPE`].
    #[must_use]
    pub fn to_der(&self) -> Vec<u8> {
        let algorithm = der::element(SEQUENCE, &[&der::oid(&oids::SHA_256), &der::element(NULL, &[])]);
        let imprint = der::element(SEQUENCE, &[&algorithm, &der::element(OCTET_STRING, &[&self.imprint])]);
        let policy = self.policy.as_ref().map(der::oid).unwrap_or_default();
        let nonce = der::element(INTEGER, &[self.nonce.integer()]);
        // FALSE is the default, which DER leaves out.
        let certificates = if self.certificates { der::element(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
        der::element(SEQUENCE, &[&der::element(INTEGER, &[&[1]]), &imprint, &policy, &nonce, &certificates])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonce(random: &[u8]) -> Vec<u8> {
        Nonce::new(random).expect("a nonce of this size").integer().to_vec()
    }

    #[test]
    fn nonces_are_positive_and_short() {
        assert_eq!(nonce(&[1; 8]), [1; 8]);
        assert_eq!(nonce(&[0x80, 0, 0, 0, 0, 0, 0, 1]), [0, 0x80, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(nonce(&[0, 0, 0, 0x7f, 0, 0, 0, 1]), [0x7f, 0, 0, 0, 1]);
        assert_eq!(nonce(&[0; 9]), [0]);
        assert_eq!(Nonce::new(&[1; 7]), Err(Error::NonceSize { bytes: 7 }));
        assert_eq!(Nonce::new(&[1; 33]), Err(Error::NonceSize { bytes: 33 }));
    }

    #[test]
    fn a_request_has_the_bytes_of_the_specification() {
        let request = Request::new([0x11; 32], Nonce::new(&[0x22; 8]).expect("eight bytes"));
        let head = [0x02, 1, 1, 0x30, 0x31, 0x30, 0x0d, 0x06, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1, 5, 0, 4, 0x20];
        let mut expected = vec![0x30, 0x43];
        expected.extend_from_slice(&head);
        expected.extend_from_slice(&[0x11; 32]);
        expected.extend_from_slice(&[2, 8]);
        expected.extend_from_slice(&[0x22; 8]);
        expected.extend_from_slice(&[1, 1, 0xff]);
        assert_eq!(request.clone().with_certificates().to_der(), expected);
        expected.truncate(expected.len() - 3);
        expected[1] = 0x40;
        assert_eq!(request.clone().to_der(), expected);
        let policy = ObjectIdentifier::new_unwrap("1.2.3");
        expected[1] = 0x44;
        expected.splice(56..56, [6, 2, 0x2a, 3]);
        assert_eq!(request.with_policy(policy).to_der(), expected);
    }
}
