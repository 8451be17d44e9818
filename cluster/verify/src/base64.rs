//! Base64 with the standard alphabet and padding (RFC 4648, section 4), and hex. The decoders
//! accept only the canonical text of some bytes.

use alloc::{string::String, vec::Vec};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            // A chunk of n bytes fills n + 1 digits.
            let symbol = ALPHABET[(word >> (18 - 6 * digit) & 63) as usize];
            out.push(if digit <= chunk.len() { char::from(symbol) } else { '=' });
        }
    }
    out
}

/// The bytes of `text`; `None` if `text` is not exactly what [`encode`] returns for them.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|symbol| **symbol == b'=').count();
    let digits = &text[..text.len() - padding];
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut word = 0;
        for symbol in chunk {
            word = word << 6 | u32::from(value(*symbol)?);
        }
        word <<= 6 * (4 - chunk.len());
        let [_, bytes @ ..] = word.to_be_bytes();
        // The last chunk may hold fewer bytes; the unused bits must be zero.
        let (kept, unused) = bytes.split_at(chunk.len() - 1);
        if unused.iter().any(|byte| *byte != 0) {
            return None;
        }
        out.extend_from_slice(kept);
    }
    Some(out)
}

/// Fills `out` with the bytes of lower-case hex digits. `None` if the text is anything else.
pub(crate) fn decode_hex(text: &str, out: &mut [u8]) -> Option<()> {
    if text.len() != 2 * out.len() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | value;
        }
    }
    Some(())
}

fn value(symbol: u8) -> Option<u8> {
    match symbol {
        b'A'..=b'Z' => Some(symbol - b'A'),
        b'a'..=b'z' => Some(symbol - b'a' + 26),
        b'0'..=b'9' => Some(symbol - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn what_is_not_canonical_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Zg==Zg==", "Z===", "Zm9v====", "Zm 9", "Zm9v\n", "Zm-_"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn hex_has_one_spelling() {
        let read = |text: &str| {
            let mut bytes = [0; 2];
            decode_hex(text, &mut bytes).map(|()| bytes)
        };
        assert_eq!(read("09af"), Some([0x09, 0xaf]));
        for text in ["", "09a", "09aff", "09AF", "09ag", "+9af", "0x9a", "09a\u{e9}"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn two_texts_never_have_the_same_bytes() {
        let symbols = ['A', 'B', 'Q', '/', '='];
        for index in 0..625_usize {
            let text: String = [125, 25, 5, 1].iter().map(|place| symbols[index / place % 5]).collect();
            if let Some(bytes) = decode(&text) {
                assert_eq!(encode(&bytes), text);
            }
        }
    }
}
