//! The statement of a token: `TSTInfo` of RFC 3161.
//!
//! It has a reader of its own, because other libraries lose fractions of a second or refuse them.
//! Both the time and its accuracy must be exact.

use const_oid::ObjectIdentifier;

use crate::{
    Accuracy, Error, IMPRINT_BYTES, Moment,
    der::{self, BOOLEAN, GENERALIZED_TIME, INTEGER, OCTET_STRING, Reader, SEQUENCE},
    digest::Digest,
};

/// The statement of a token. Nothing of it is verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The policy by which the authority stamps.
    pub policy: ObjectIdentifier,
    /// The token's number among the authority's, as the contents of a DER INTEGER.
    pub serial: Vec<u8>,
    /// The time that is stamped.
    pub time: Moment,
    /// How far the time may be off. `None` if the token doesn't say.
    pub accuracy: Option<Accuracy>,
    /// The imprint of the stamped bytes. `None` if it is not of SHA-256.
    pub imprint: Option<[u8; IMPRINT_BYTES]>,
    /// The nonce, as the contents of a DER INTEGER.
    pub(crate) nonce: Option<Vec<u8>>,
}

impl Info {
    /// Reads the DER of a `TSTInfo`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut outer = Reader::new(bytes, "TSTInfo");
        let mut info = outer.nested(SEQUENCE, "TSTInfo")?;
        outer.end()?;
        if info.number()? != 1 {
            return Err(Error::Malformed { field: "version of TSTInfo" });
        }
        let policy = info.oid()?;
        let imprint = imprint(&mut info)?;
        let serial = info.integer()?.to_vec();
        let time = info.element(GENERALIZED_TIME)?.contents;
        let time = Moment::from_generalized_time(time).ok_or(Error::Malformed { field: "genTime" })?;
        let accuracy = info.optional(SEQUENCE)?.map(|element| accuracy(element.contents)).transpose()?;
        if let Some(ordering) = info.optional(BOOLEAN)? {
            // FALSE is the default, so DER leaves it out; it is taken all the same.
            if !matches!(ordering.contents, [0 | 0xff]) {
                return Err(Error::Malformed { field: "ordering" });
            }
        }
        let nonce = if info.peek() == Some(INTEGER) { Some(info.integer()?.to_vec()) } else { None };
        // The authority's name: the certificate says better which authority it is.
        info.optional(der::context(0))?;
        if let Some(extensions) = info.optional(der::context(1))? {
            refuse_critical(extensions.contents)?;
        }
        info.end()?;
        Ok(Self { policy, serial, time, accuracy, imprint, nonce })
    }
}

/// The imprint, if it is of SHA-256.
fn imprint(info: &mut Reader<'_>) -> Result<Option<[u8; IMPRINT_BYTES]>, Error> {
    let mut imprint = info.nested(SEQUENCE, "messageImprint")?;
    let digest = Digest::read(&mut imprint, "imprints");
    let hash = imprint.element(OCTET_STRING)?.contents;
    imprint.end()?;
    match digest {
        Ok(Digest::Sha256) => hash.try_into().map(Some).map_err(|_| Error::Malformed { field: "messageImprint" }),
        Ok(_) | Err(Error::Algorithm { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn accuracy(contents: &[u8]) -> Result<Accuracy, Error> {
    let mut accuracy = Reader::new(contents, "accuracy");
    let seconds = if accuracy.peek() == Some(INTEGER) { accuracy.number()? } else { 0 };
    let mut part = |number| -> Result<u16, Error> {
        let Some(element) = accuracy.optional(der::context_plain(number))? else { return Ok(0) };
        // RFC 3161 has parts from 1 to 999.
        let value = der::number(element.contents).filter(|value| (1..=999).contains(value));
        value.and_then(|value| u16::try_from(value).ok()).ok_or(Error::Malformed { field: "accuracy" })
    };
    let (millis, micros) = (part(0)?, part(1)?);
    accuracy.end()?;
    Accuracy::new(seconds, millis, micros).ok_or(Error::Malformed { field: "accuracy" })
}

/// Refuses extensions that are critical: none is known here.
fn refuse_critical(contents: &[u8]) -> Result<(), Error> {
    let mut extensions = Reader::new(contents, "extensions");
    while !extensions.is_empty() {
        let mut extension = extensions.nested(SEQUENCE, "extensions")?;
        let name = extension.oid()?;
        let critical = extension.optional(BOOLEAN)?;
        extension.element(OCTET_STRING)?;
        extension.end()?;
        if critical.is_some_and(|critical| critical.contents != [0]) {
            return Err(Error::CriticalExtension { extension: name });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        der::{NULL, OBJECT_IDENTIFIER, element},
        oids,
    };

    const POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.99999.1.1");

    /// A `TSTInfo` with these fields after the serial number.
    fn info(fields: &[&[u8]]) -> Result<Info, Error> {
        let algorithm = element(SEQUENCE, &[&der::oid(&oids::SHA_256), &element(NULL, &[])]);
        let imprint = element(SEQUENCE, &[&algorithm, &element(OCTET_STRING, &[&[7; 32]])]);
        let head = [&element(INTEGER, &[&[1]])[..], &der::oid(&POLICY), &imprint, &element(INTEGER, &[&[9]])].concat();
        Info::parse(&element(SEQUENCE, &[&head, &fields.concat()]))
    }

    fn time(text: &str) -> Vec<u8> {
        element(GENERALIZED_TIME, &[text.as_bytes()])
    }

    fn accuracy_of(parts: &[&[u8]]) -> Result<Option<Accuracy>, Error> {
        info(&[&time("20261121043156.547Z"), &element(SEQUENCE, parts)]).map(|info| info.accuracy)
    }

    #[test]
    fn fractions_and_accuracies_are_kept() {
        let read = info(&[&time("20261121043156.547Z")]).expect("a short statement");
        assert_eq!((read.time.to_string().as_str(), read.accuracy), ("2026-11-21T04:31:56.547Z", None));
        assert_eq!((read.serial, read.policy, read.imprint, read.nonce), (vec![9], POLICY, Some([7; 32]), None));
        assert_eq!(accuracy_of(&[]), Ok(Accuracy::new(0, 0, 0)));
        assert_eq!(accuracy_of(&[&[2, 1, 1], &[0x80, 2, 1, 0xf4], &[0x81, 1, 7]]), Ok(Accuracy::new(1, 500, 7)));
        assert_eq!(accuracy_of(&[&[0x81, 2, 3, 0xe7]]), Ok(Accuracy::new(0, 0, 999)));
        for parts in [
            &[0x80, 1, 0][..],
            &[0x80, 2, 3, 0xe8],
            &[0x80, 1, 0xff],
            &[0x81, 1, 7, 0x80, 1, 7],
            &[2, 1, 0xff],
            &[2, 5, 1, 0, 0, 0, 0],
            &[4, 0],
        ] {
            assert_eq!(accuracy_of(&[parts]), Err(Error::Malformed { field: "accuracy" }), "{parts:x?}");
        }
    }

    #[test]
    fn all_fields_are_read_in_order() {
        let (time, nonce) = (time("20261121043156Z"), [2, 2, 0, 0x80]);
        let (ordering, name) = ([1, 1, 0xff], [0xa0, 2, 5, 0]);
        let read = info(&[&time, &ordering, &nonce, &name]).expect("fields in order");
        assert_eq!(read.nonce, Some(vec![0, 0x80]));
        assert!(info(&[&time, &nonce, &ordering]).is_err());
        assert!(info(&[&time, &[1, 1, 1]]).is_err());
        assert!(info(&[&time, &[2, 2, 0, 1]]).is_err(), "not the shortest form");
        assert!(info(&[&time, &time]).is_err());
        assert!(info(&[&ordering]).is_err());
    }

    #[test]
    fn critical_extensions_are_refused() {
        let extension = |critical: &[u8]| {
            let inner = element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[&[0x2a, 3]]), critical, &[4, 0]]);
            info(&[&time("20261121043156Z"), &element(der::context(1), &[&inner])]).map(|_| ())
        };
        assert_eq!(extension(&[]), Ok(()));
        assert_eq!(extension(&[1, 1, 0]), Ok(()));
        let critical = Error::CriticalExtension { extension: ObjectIdentifier::new_unwrap("1.2.3") };
        assert_eq!(extension(&[1, 1, 0xff]), Err(critical.clone()));
        assert_eq!(extension(&[1, 1, 1]), Err(critical));
    }
}
