//! Single signature lines of notes. A note that others passed on may have any lines; each counts or
//! not by itself.

use coppice_verify::{
    cosignature::WitnessKey,
    note::{self, VerifierKey},
};

/// A cosignature that was found on a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The line, without a line feed.
    pub line: String,
    /// The time that it states, in seconds since 1970.
    pub time: u64,
}

/// The note with only the first sound line of this key; `None` if it has none.
#[must_use]
pub fn bare(bytes: &[u8], key: &VerifierKey) -> Option<String> {
    notes_of_one_line(bytes).map(|(note, _)| note).find(|note| note::open(note.as_bytes(), key).is_ok())
}

/// The newest sound cosignature of this key on a note. Unsound lines count for nothing: whoever
/// passed the note on may have added them.
#[must_use]
pub fn cosignature(bytes: &[u8], key: &WitnessKey) -> Option<Found> {
    let sound = notes_of_one_line(bytes).filter_map(|(note, line)| {
        let time = key.cosigned(note.as_bytes()).ok()??;
        Some(Found { line: line.to_owned(), time })
    });
    sound.max_by_key(|found| found.time)
}

/// The text of a note once with each of its lines.
fn notes_of_one_line(bytes: &[u8]) -> impl Iterator<Item = (String, &str)> {
    let sound = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() <= note::NOTE_BYTES_MAX);
    let split = sound.and_then(|note| note.rsplit_once("\n\n"));
    let (text, lines) = split.unwrap_or(("", ""));
    lines.lines().take(note::SIGNATURE_LINES_MAX).map(move |line| (format!("{text}\n\n{line}\n"), line))
}

#[cfg(test)]
mod tests {
    use coppice_verify::{
        cosignature::{Cosigner, add_lines},
        note::SignerKey,
    };

    use super::*;

    fn key_of(member: &Cosigner) -> WitnessKey {
        member.verifier().clone().into()
    }

    #[test]
    fn lines_of_others_neither_hide_nor_forge_a_line() {
        let key = SignerKey::from_seed("log", &[1; 32]).expect("a name");
        let member = Cosigner::from_seed("w", &[2; 32]).expect("a name");
        let other = Cosigner::from_seed("w", &[3; 32]).expect("a name");
        let signed = key.sign_note("a\nb\n").expect("a text");
        let good = [member.cosign("a\nb\n", 5), member.cosign("a\nb\n", 7)];
        // A line with the member's name and key id whose signature is of another text.
        let bad = [member.cosign("x\n", 9), other.cosign("a\nb\n", 9)];
        let lines = [bad[0].clone(), good[0].clone(), bad[1].clone(), good[1].clone()];
        let note = add_lines(signed.as_bytes(), &lines).expect("lines");
        let found = cosignature(&note, &key_of(&member));
        assert_eq!(found, Some(Found { line: good[1].clone(), time: 7 }));
        assert_eq!(bare(&note, key.verifier()).as_deref(), Some(signed.as_str()));
        let unsigned = add_lines(signed.as_bytes(), &bad).expect("lines");
        assert_eq!(cosignature(&unsigned, &key_of(&member)), None);
        let stranger = SignerKey::from_seed("log", &[4; 32]).expect("a name");
        assert_eq!(bare(&note, stranger.verifier()), None);
        assert_eq!(bare(b"no note", key.verifier()), None);
    }
}
