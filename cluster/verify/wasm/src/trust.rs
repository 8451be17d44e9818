//! The rules of trust for a host that remembers: words of a fixed form in, a number out.
//!
//! A word has 40 bytes. It is a mark (u64 size, root), a key change (u64 sequence, public key), or
//! numbers. So little code reads it: each byte of the module is transferred to browsers.

use coppice_types::{Digest, Sequence, Version};
use coppice_verify::trust::{Asked, Change, Distrust, Grown, Growth, Mark, Marks, compare};

/// A request that makes no sense. Below it are the numbers of [`Distrust`].
const MISUSE: u32 = 0xff;
/// The host remembers the answer's checkpoint as the newest one.
const IS_NEWEST: u32 = 1 << 8;
/// The host remembers the answer's checkpoint as proven.
const IS_PROVEN: u32 = 1 << 9;
/// The host remembers the changes that the answer shows.
const HAS_CHANGES: u32 = 1 << 10;
/// Two proofs of growth show one log.
const IS_ONE_LOG: u32 = 1 << 11;

type Word = [u8; 40];

/// Judges an answer whose proof holds. The words are
///
/// ```text
/// newest || proven || checkpoint of the answer || numbers || known changes || shown changes
/// numbers = u64 seen || u64 version || u64 newest version || u64 whether head was asked for
///           || u64 count of known changes
/// ```
///
/// Before the first answer, the size of `newest` is 0.
#[must_use]
pub fn trust(request: &[u8]) -> u32 {
    let [newest, proven, shown, numbers, changes @ ..] = request.as_chunks().0 else { return MISUSE };
    let [seen, version, head, of_head, count] = numbers.as_chunks().0 else { return MISUSE };
    let [seen, version, head, of_head, count] = [seen, version, head, of_head, count].map(|it| u64::from_le_bytes(*it));
    let Some((known, new)) = changes.split_at_checked(count as usize) else { return MISUSE };
    let asked = Asked { seen, of_head: of_head != 0 };
    let (before, shown) = (Marks { newest: mark(newest), proven: mark(proven) }, mark(shown));
    let judge = || {
        asked.check(Some(Version(version)), Version(head), shown.size)?;
        let has_changes = compare(known.iter().map(change), new.iter().map(change), shown.size)?;
        let answer = if has_changes { HAS_CHANGES } else { 0 };
        if before.newest.size == 0 {
            return Ok(answer | IS_NEWEST | IS_PROVEN);
        }
        let mut marks = before;
        marks.note(shown)?;
        Ok(if marks == before { answer } else { answer | IS_NEWEST })
    };
    number_of(judge())
}

/// Judges two proofs of growth, from the checkpoint that was proven last and from the newest one.
/// The words are
///
/// ```text
/// proven || newest, when they were asked for || newest || proven, now
/// || old mark || end, of the proof from proven || old mark || end, of the proof from newest
/// ```
///
/// If the ends can't be compared, neither of them is remembered.
#[must_use]
pub fn grown(request: &[u8]) -> u32 {
    let [asked_proven, asked_newest, newest, proven, old, end, other_old, other_end] = request.as_chunks().0 else {
        return MISUSE;
    };
    let growth = Growth { proven: mark(asked_proven), newest: mark(asked_newest) };
    let before = Marks { newest: mark(newest), proven: mark(proven) };
    let from_proven = Grown { old_root: mark(old).root, end: mark(end) };
    let from_newest = Grown { old_root: mark(other_old).root, end: mark(other_end) };
    let judge = || {
        let Some(end) = growth.check(from_proven, from_newest)? else { return Ok(0) };
        let mut marks = before;
        marks.prove(end)?;
        let newest = if marks.newest == before.newest { 0 } else { IS_NEWEST };
        let proven = if marks.proven == before.proven { 0 } else { IS_PROVEN };
        Ok(IS_ONE_LOG | newest | proven)
    };
    number_of(judge())
}

fn number_of(judged: Result<u32, Distrust>) -> u32 {
    judged.unwrap_or_else(|distrust| distrust as u32)
}

#[inline(never)]
fn mark(word: &Word) -> Mark {
    let (mut size, mut root) = ([0; 8], [0; 32]);
    size.copy_from_slice(&word[..8]);
    root.copy_from_slice(&word[8..]);
    Mark { size: u64::from_le_bytes(size), root: Digest(root) }
}

fn change(word: &Word) -> Change {
    let Mark { size, root } = mark(word);
    (Sequence(size), root.0)
}
