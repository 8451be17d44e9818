//! DER, as far as time stamps need it: elements with tags of one byte and lengths of their shortest
//! form. Anything else is refused, so that equal values have equal bytes.

use const_oid::ObjectIdentifier;

use crate::Error;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const NULL: u8 = 0x05;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// The tag `[number]` of an element that holds others.
pub(crate) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// The tag `[number]` of an element that holds a plain value.
pub(crate) const fn context_plain(number: u8) -> u8 {
    0x80 | number
}

/// One element.
#[derive(Clone, Copy)]
pub(crate) struct Element<'a> {
    pub tag: u8,
    pub contents: &'a [u8],
    /// Tag, length and contents.
    pub whole: &'a [u8],
}

/// The elements of `bytes`, one after the other.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// What is read, for errors.
    field: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], field: &'static str) -> Self {
        Self { rest: bytes, field }
    }

    /// The error that names what is read.
    pub(crate) fn malformed(&self) -> Error {
        Error::Malformed { field: self.field }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The tag of the next element.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Takes the next element, whatever its tag.
    pub(crate) fn any(&mut self) -> Result<Element<'a>, Error> {
        let element = split(self.rest).ok_or_else(|| self.malformed())?;
        self.rest = &self.rest[element.whole.len()..];
        Ok(element)
    }

    /// Takes the next element, which must have this tag.
    pub(crate) fn element(&mut self, tag: u8) -> Result<Element<'a>, Error> {
        let element = self.any()?;
        if element.tag == tag { Ok(element) } else { Err(self.malformed()) }
    }

    /// Takes the next element if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<Element<'a>>, Error> {
        if self.peek() == Some(tag) { self.any().map(Some) } else { Ok(None) }
    }

    /// Takes the next element, and gives a reader of its contents.
    pub(crate) fn nested(&mut self, tag: u8, field: &'static str) -> Result<Reader<'a>, Error> {
        Ok(Reader::new(self.element(tag)?.contents, field))
    }

    /// Takes an OBJECT IDENTIFIER of at most 39 bytes.
    pub(crate) fn oid(&mut self) -> Result<ObjectIdentifier, Error> {
        let contents = self.element(OBJECT_IDENTIFIER)?.contents;
        ObjectIdentifier::from_bytes(contents).map_err(|_| self.malformed())
    }

    /// Takes an INTEGER; gives its contents, which have the shortest form.
    pub(crate) fn integer(&mut self) -> Result<&'a [u8], Error> {
        let contents = self.element(INTEGER)?.contents;
        if is_shortest_integer(contents) { Ok(contents) } else { Err(self.malformed()) }
    }

    /// Takes an INTEGER from 0 to 2^32 - 1.
    pub(crate) fn number(&mut self) -> Result<u32, Error> {
        let contents = self.integer()?;
        number(contents).ok_or_else(|| self.malformed())
    }

    /// Refuses what is left over.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}

/// The value of an INTEGER's contents, if it lies from 0 to 2^32 - 1.
pub(crate) fn number(contents: &[u8]) -> Option<u32> {
    if !is_shortest_integer(contents) || contents[0] & 0x80 != 0 || contents.len() > 5 {
        return None;
    }
    let value = contents.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    u32::try_from(value).ok()
}

fn is_shortest_integer(contents: &[u8]) -> bool {
    match contents {
        [] => false,
        [_] => true,
        [0, second, ..] => second & 0x80 != 0,
        [0xff, second, ..] => second & 0x80 == 0,
        _ => true,
    }
}

/// Splits the first element off. Lengths of up to three bytes are enough for 16 MiB.
fn split(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            let is_shortest = digits[0] != 0 && length > 0x7f;
            (is_shortest.then_some(length)?, rest)
        }
        _ => return None,
    };
    let contents = rest.get(..length)?;
    let whole = &bytes[..bytes.len() - rest.len() + length];
    Some(Element { tag, contents, whole })
}

/// The bytes of an element whose contents are these parts.
pub(crate) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let digits = length.to_be_bytes();
    let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
    let mut bytes = vec![tag];
    if length > 0x7f {
        bytes.push(0x80 | u8::try_from(digits.len()).expect("a length has at most eight bytes"));
        bytes.extend_from_slice(digits);
    } else {
        bytes.push(u8::try_from(length).expect("at most 127, as checked above"));
    }
    bytes.extend(parts.iter().flat_map(|part| part.iter()));
    bytes
}

/// The bytes of an OBJECT IDENTIFIER.
pub(crate) fn oid(oid: &ObjectIdentifier) -> Vec<u8> {
    element(OBJECT_IDENTIFIER, &[oid.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<(u8, &[u8])> {
        split(bytes).map(|element| (element.tag, element.contents))
    }

    #[test]
    fn only_the_shortest_lengths_are_read() {
        assert_eq!(read(&[4, 1, 9, 7]), Some((4, &[9][..])));
        assert_eq!(read(&[4, 0x81, 1, 9]), None, "one byte would do");
        assert_eq!(read(&[4, 0x80, 9, 0, 0]), None, "no definite length");
        assert_eq!(read(&[4, 0x84, 0, 0, 0, 1, 9]), None, "too long");
        assert_eq!(read(&[4, 2, 9]), None, "cut off");
        assert_eq!(read(&[0x1f, 1, 1, 9]), None, "a tag of two bytes");
        assert_eq!(read(&[]), None);
        for length in [0, 127, 128, 255, 256, 65_535, 65_536] {
            let contents = vec![7; length];
            let bytes = element(4, &[&contents, &[]]);
            assert_eq!(read(&bytes), Some((4, &contents[..])), "{length}");
            assert_eq!(read(&bytes[..bytes.len() - 1]), None, "{length} cut off");
        }
    }

    #[test]
    fn only_the_shortest_integers_are_read() {
        for (contents, value) in [
            (&[0][..], Some(0)),
            (&[0x7f], Some(127)),
            (&[0, 0x80], Some(128)),
            (&[0, 0xff, 0xff, 0xff, 0xff], Some(u32::MAX)),
            (&[1, 0, 0, 0, 0], None),
            (&[0, 1], None),
            (&[0x80], None),
            (&[0xff, 0x80], None),
            (&[], None),
        ] {
            assert_eq!(number(contents), value, "{contents:?}");
        }
    }
}
