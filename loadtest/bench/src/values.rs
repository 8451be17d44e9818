//! Values that name their write: a token that is never used twice, and a filling whose length and
//! bytes follow from the token.

use anyhow::{Context, Result, ensure};
use coppice_verify::hash::sha256;

/// The longest filling, in bytes: some values lie in their leaf, others in the value log.
const FILLING_BYTES_MAX: usize = 3000;

/// The value of a token.
pub fn value(token: &str) -> Vec<u8> {
    let hash = sha256(token.as_bytes());
    let spread = usize::from(u16::from_le_bytes([hash.0[0], hash.0[1]]));
    // Small values are more frequent.
    let len = if hash.0[2] < 192 { spread % 64 } else { spread % FILLING_BYTES_MAX };
    let filling = hash.0.iter().cycle().take(len);
    token.bytes().chain([b':']).chain(filling.copied()).collect()
}

/// The token of a value.
///
/// # Errors
/// If the value is not the token's, and so was made up or cut.
pub fn token(bytes: &[u8]) -> Result<String> {
    let end = bytes.iter().position(|byte| *byte == b':').context("a value without a token")?;
    let token = std::str::from_utf8(&bytes[..end]).context("a token that is not text")?;
    ensure!(value(token) == bytes, "the value of {token} was changed");
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_its_token_and_a_changed_one_is_refused() {
        let mut lengths = Vec::new();
        for number in 0..200 {
            let name = format!("7-{number}");
            let mut bytes = value(&name);
            assert_eq!(token(&bytes).expect("a value of ours"), name);
            lengths.push(bytes.len());
            bytes.pop();
            assert!(token(&bytes).is_err(), "{name}");
        }
        assert!(lengths.iter().any(|len| *len > 1000) && lengths.iter().any(|len| *len < 50), "{lengths:?}");
    }
}
