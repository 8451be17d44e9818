//! Headers in answers. All other values are converted in `coppice_proto::convert`.

use coppice_types::codec;
use coppice_verify::header::Header;

use crate::Error;

/// Decodes a header from an answer, in canonical bytes.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are not a header.
pub fn header(bytes: &[u8]) -> Result<Header, Error> {
    Header::decode(bytes).map_err(|error| match error {
        codec::Error::Malformed(what) => Error::Malformed(what),
        _ => Error::Malformed("header"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_a_header_are_malformed() {
        for bytes in [&b""[..], b"header", &[0xff; 300]] {
            assert!(matches!(header(bytes), Err(Error::Malformed(_))), "{bytes:?}");
        }
    }
}
