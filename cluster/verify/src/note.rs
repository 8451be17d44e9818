//! C2SP signed notes and their Ed25519 keys (`docs/verification.md` section 10).
//!
//! This code is stricter where the specification leaves room: base64 is canonical, hex is
//! lower-case, every line of the trusted key must verify, and Ed25519 refuses small-order keys and
//! points. Nothing depends on a signature's bytes being unique.
//!
//! An error never repeats the text of a key, and callers should not either: the text may be a
//! private key, given by mistake.

use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::fmt;

use ed25519_dalek::{Signature, VerifyingKey};
#[cfg(feature = "sign")]
use ed25519_dalek::{Signer as _, SigningKey};
use zeroize::Zeroizing;

use crate::{base64, hash::key_id};

/// Longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 64 << 10;
/// Most signature lines of a note.
pub const SIGNATURE_LINES_MAX: usize = 100;
/// Type of an Ed25519 key that signs notes.
pub const TYPE_ED25519: u8 = 1;
/// First characters of the text of a private key.
const PRIVATE: &str = "PRIVATE+KEY+";
/// First characters of a signature line.
pub(crate) const DASH: &str = "\u{2014} ";

/// The reason why a note is not believed, or a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not a note, key or checkpoint; names the malformed part.
    Malformed(&'static str),
    /// No signature line is of the trusted key.
    Unsigned,
    /// A signature line of the trusted key does not verify.
    BadSignature,
    /// The key is of small order: it would verify signatures that nobody made.
    WeakKey,
    /// A private key was given where a public one belongs.
    PrivateKey,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(part) => write!(f, "malformed {part}"),
            Self::Unsigned => f.write_str("no signature of the trusted key"),
            Self::BadSignature => f.write_str("a signature of the trusted key does not verify"),
            Self::WeakKey => f.write_str("the key is of small order"),
            Self::PrivateKey => {
                f.write_str("this is a private key, which is nobody else's: the public one belongs here")
            }
        }
    }
}

impl core::error::Error for Error {}

/// An Ed25519 public key that is trusted under a name, for the purpose of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey<const TYPE: u8> {
    name: String,
    id: [u8; 4],
    key: VerifyingKey,
}

/// A key that signs notes. A ledger's key has the ledger's origin as its name.
pub type VerifierKey = PublicKey<TYPE_ED25519>;

impl<const TYPE: u8> PublicKey<TYPE> {
    /// A key of this name. The key id follows from name, type and key (section 10).
    ///
    /// # Errors
    /// [`Error::Malformed`] if the name or the key is invalid, [`Error::WeakKey`] if the key is of
    /// small order.
    pub fn new(name: &str, public_key: &[u8; 32]) -> Result<Self, Error> {
        check_name(name)?;
        Ok(Self { name: name.to_owned(), id: key_id(name, TYPE, public_key), key: strong_key(public_key)? })
    }

    /// Parses a vkey, `name+hex(key id)+base64(type || public key)`.
    ///
    /// # Errors
    /// If the text is not a vkey, its key is of a different type, or its key id is not that of the
    /// key. [`Error::PrivateKey`] if it is a private key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (name, id, key) = split_key(text, TYPE)?;
        let key = Self::new(name, &key)?;
        if key.id == id { Ok(key) } else { Err(Error::Malformed("key id")) }
    }

    /// The name under which the key signs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The 32 bytes of the key.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    pub(crate) fn key_bytes(&self) -> &[u8] {
        self.key.as_bytes()
    }

    #[cfg(feature = "sign")]
    pub(crate) fn id(&self) -> [u8; 4] {
        self.id
    }

    /// Whether name and key id of a signature line are those of this key.
    pub(crate) fn is_of(&self, line: &Line<'_>) -> bool {
        line.name == self.name && line.id == self.id
    }

    pub(crate) fn is_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else { return false };
        self.key.verify_strict(message, &signature).is_ok()
    }
}

impl VerifierKey {
    /// Whether the signature over the message is this key's. The check is strict (section 10).
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.is_signed(message, signature)
    }
}

/// Prints the vkey.
impl<const TYPE: u8> fmt::Display for PublicKey<TYPE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_key(f, &self.name, self.id, TYPE, &self.public_key())
    }
}

/// A private key that signs notes. It can't be printed or compared, and is erased when dropped.
#[cfg(feature = "sign")]
pub struct SignerKey {
    key: SigningKey,
    verifier: VerifierKey,
}

#[cfg(feature = "sign")]
impl SignerKey {
    /// The key of a seed: 32 bytes from a good source of randomness.
    ///
    /// # Errors
    /// If the name is invalid.
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, Error> {
        let key = SigningKey::from_bytes(seed);
        let verifier = VerifierKey::new(name, &key.verifying_key().to_bytes())?;
        Ok(Self { key, verifier })
    }

    /// Parses the text of a private key, `PRIVATE+KEY+name+hex(key id)+base64(type || seed)`.
    ///
    /// # Errors
    /// If the text is not a private key, its key is of a different type, or its key id is not that
    /// of the key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.strip_prefix(PRIVATE).ok_or(Error::Malformed("private key"))?;
        let (name, id, seed) = split_key(text, TYPE_ED25519)?;
        let key = Self::from_seed(name, &seed)?;
        if key.verifier.id == id { Ok(key) } else { Err(Error::Malformed("key id")) }
    }

    /// The text of the private key. Keep it secret.
    #[must_use]
    pub fn to_private_text(&self) -> Zeroizing<String> {
        // The capacity is enough for the whole text, since growing would leave a copy of a part in
        // freed memory.
        let mut out = Zeroizing::new(String::with_capacity(self.verifier.name.len() + 128));
        out.push_str(PRIVATE);
        write_key(&mut *out, &self.verifier.name, self.verifier.id, TYPE_ED25519, self.key.as_bytes())
            .expect("writing to a string does not fail");
        out
    }

    /// The public key.
    #[must_use]
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }

    /// The name under which the key signs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.verifier.name
    }

    /// The 32 bytes that the key follows from.
    pub(crate) fn seed(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Signs a message. It must not be the text of a note: whatever else is signed begins with a
    /// control character.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }

    /// The signed note with this text and this key's signature line alone.
    ///
    /// # Errors
    /// If a note can't have this text: it must end in a line feed and have no other control
    /// characters.
    pub fn sign_note(&self, text: &str) -> Result<String, Error> {
        let signature = self.sign(text.as_bytes());
        let mut payload = Vec::from(self.verifier.id);
        payload.extend_from_slice(&signature);
        let note = alloc::format!("{text}\n{DASH}{} {}\n", self.verifier.name, base64::encode(&payload));
        // The signature is this key's; only the form depends on the text.
        match split_note(note.as_bytes()) {
            Ok((read, _)) if read == text => Ok(note),
            _ => Err(Error::Malformed("text of a note")),
        }
    }
}

#[cfg(feature = "sign")]
impl fmt::Debug for SignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignerKey").field(&self.verifier.name).finish()
    }
}

/// The text of a note that `key` signed. Signature lines of other keys are skipped.
///
/// # Errors
/// [`Error::Malformed`] if it is not a note, [`Error::Unsigned`] if no line is of the key,
/// [`Error::BadSignature`] if any line of the key does not verify.
pub fn open<'a>(note: &'a [u8], key: &VerifierKey) -> Result<&'a str, Error> {
    let (text, lines) = split_note(note)?;
    let mut signed = false;
    for line in lines.lines() {
        let line = split_line(line)?;
        if key.is_of(&line) {
            if !key.verifies(text.as_bytes(), &line.signature) {
                return Err(Error::BadSignature);
            }
            signed = true;
        }
    }
    if signed { Ok(text) } else { Err(Error::Unsigned) }
}

/// A decoded signature line.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: [u8; 4],
    pub(crate) signature: Vec<u8>,
}

/// Splits a note at its last empty line into text and signature lines.
pub(crate) fn split_note(note: &[u8]) -> Result<(&str, &str), Error> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(Error::Malformed("note: too long"));
    }
    if note.iter().any(|byte| *byte < 0x20 && *byte != b'\n') {
        return Err(Error::Malformed("note: control character"));
    }
    let note = core::str::from_utf8(note).map_err(|_| Error::Malformed("note: not UTF-8"))?;
    // A search for text would add a kilobyte to the module for WebAssembly.
    let at = note.as_bytes().windows(2).rposition(|pair| pair == b"\n\n");
    let at = at.ok_or(Error::Malformed("note: no empty line"))?;
    let (text, lines) = (&note[..=at], &note[at + 2..]);
    if !lines.ends_with('\n') || lines.lines().count() > SIGNATURE_LINES_MAX {
        return Err(Error::Malformed("note: number or end of signature lines"));
    }
    Ok((text, lines))
}

/// Decodes a signature line without its line feed.
pub(crate) fn split_line(line: &str) -> Result<Line<'_>, Error> {
    let malformed = Error::Malformed("signature line");
    let (name, payload) = line.strip_prefix(DASH).and_then(|rest| rest.split_once(' ')).ok_or(malformed)?;
    check_name(name).map_err(|_| malformed)?;
    let payload = base64::decode(payload).ok_or(malformed)?;
    let (id, signature) = payload.split_first_chunk().ok_or(malformed)?;
    if signature.is_empty() { Err(malformed) } else { Ok(Line { name, id: *id, signature: signature.to_vec() }) }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let bad = |symbol: char| symbol == '+' || symbol.is_whitespace() || u32::from(symbol) < 0x20;
    if name.is_empty() || name.contains(bad) { Err(Error::Malformed("key name")) } else { Ok(()) }
}

/// An Ed25519 key that is not of small order.
pub(crate) fn strong_key(public_key: &[u8; 32]) -> Result<VerifyingKey, Error> {
    let key = VerifyingKey::from_bytes(public_key).map_err(|_| Error::Malformed("public key"))?;
    if key.is_weak() { Err(Error::WeakKey) } else { Ok(key) }
}

/// The parts of a key's text. `key` is what follows the type.
pub(crate) struct KeyText<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: [u8; 4],
    pub(crate) key_type: u8,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// Splits `name+hex(key id)+base64(type || key)`.
pub(crate) fn split_key_text(text: &str) -> Result<KeyText<'_>, Error> {
    if text.starts_with(PRIVATE) {
        return Err(Error::PrivateKey);
    }
    let malformed = Error::Malformed("key");
    // Base64 may contain pluses, so only the first two separate fields.
    let mut fields = text.splitn(3, '+');
    let (Some(name), Some(hex), Some(key)) = (fields.next(), fields.next(), fields.next()) else {
        return Err(malformed);
    };
    let mut id = [0; 4];
    base64::decode_hex(hex, &mut id).ok_or(Error::Malformed("key id"))?;
    let key = Zeroizing::new(base64::decode(key).ok_or(malformed)?);
    let (&key_type, key) = key.split_first().ok_or(Error::Malformed("key type"))?;
    Ok(KeyText { name, id, key_type, key: Zeroizing::new(key.to_vec()) })
}

/// Name, key id and the 32 bytes of a key.
type Key<'a> = (&'a str, [u8; 4], Zeroizing<[u8; 32]>);

/// The parts of a text whose key has this type.
fn split_key(text: &str, key_type: u8) -> Result<Key<'_>, Error> {
    let parts = split_key_text(text)?;
    if parts.key_type != key_type {
        return Err(Error::Malformed("key type"));
    }
    let key = parts.key.as_slice().try_into().map_err(|_| Error::Malformed("key"))?;
    Ok((parts.name, parts.id, Zeroizing::new(key)))
}

fn write_key(out: &mut impl fmt::Write, name: &str, id: [u8; 4], key_type: u8, key: &[u8; 32]) -> fmt::Result {
    let mut payload = Zeroizing::new([key_type; 33]);
    payload[1..].copy_from_slice(key);
    let text = Zeroizing::new(base64::encode(&*payload));
    write!(out, "{name}+{:08x}+{}", u32::from_be_bytes(id), *text)
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString};

    use super::*;

    fn key(seed: u8) -> SignerKey {
        SignerKey::from_seed("ledger.example/x", &[seed; 32]).expect("the name is fine")
    }

    #[test]
    fn a_signed_note_opens_with_its_key_only() {
        let note = key(1).sign_note("one\n\ntwo\n").expect("a text");
        assert_eq!(open(note.as_bytes(), key(1).verifier()), Ok("one\n\ntwo\n"));
        assert_eq!(open(note.as_bytes(), key(2).verifier()), Err(Error::Unsigned));
        for bit in 0..note.len() * 8 {
            let mut flipped = note.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&flipped, key(1).verifier()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lines_by_strangers_are_skipped_and_a_bad_line_by_the_key_condemns() {
        let note = key(1).sign_note("text\n").expect("a text");
        let stranger = key(2).sign_note("text\n").expect("a text");
        let liar = key(1).sign_note("other\n").expect("a text");
        let line = |note: &str| note.split_once("\n\n").expect("a note").1.to_string();
        assert!(open(format!("{note}{}", line(&stranger)).as_bytes(), key(1).verifier()).is_ok());
        assert!(open(format!("{note}{}", line(&note)).as_bytes(), key(1).verifier()).is_ok());
        let both = format!("{note}{}", line(&liar));
        assert_eq!(open(both.as_bytes(), key(1).verifier()), Err(Error::BadSignature));
        let many = format!("{note}{}", line(&stranger).repeat(SIGNATURE_LINES_MAX));
        assert!(matches!(open(many.as_bytes(), key(1).verifier()), Err(Error::Malformed(_))));
    }

    #[test]
    fn texts_that_no_note_can_hold_are_not_signed() {
        for text in ["", "no line feed", "tab\t\n", "return\r\n"] {
            assert_eq!(key(1).sign_note(text), Err(Error::Malformed("text of a note")), "{text:?}");
        }
    }

    #[test]
    fn keys_survive_their_text() {
        let key = key(3);
        assert_eq!(VerifierKey::parse(&key.verifier().to_string()).as_ref(), Ok(key.verifier()));
        let again = SignerKey::parse(&key.to_private_text()).expect("a private key");
        assert_eq!(again.verifier(), key.verifier());
        assert_eq!(format!("{key:?} {key:#?}").matches("ledger.example/x").count(), 2, "its name, and nothing else");
        assert_eq!(format!("{key:?}"), "SignerKey(\"ledger.example/x\")");
        assert!(SignerKey::parse(&key.verifier().to_string()).is_err());
        assert_eq!(VerifierKey::parse(&key.to_private_text()), Err(Error::PrivateKey));
        assert!(SignerKey::from_seed("a b", &[1; 32]).is_err());
    }

    #[test]
    fn small_order_keys_are_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(VerifierKey::new("x", &identity), Err(Error::WeakKey));
    }
}
