//! Reserved keys: where the records of a ledger lie (section 18, *Reserved keys*).
//!
//! The first byte is 00. The second one spreads ledgers over the shards: all keys of a compact
//! ledger have one, those of a spread ledger have one for each 256 journals and for each clue.

use alloc::vec::Vec;

use coppice_types::{Digest, LedgerId, MemberId};

use crate::hash::ledger_place;

/// The first key that is not reserved.
pub const RESERVED_END: &[u8] = &[1];
/// Journals whose leaves, envelopes and tiles lie side by side in a spread ledger.
const UNIT_JOURNALS: u64 = 256;

/// Place of the kind in a key, behind the two first bytes and the ledger's id.
const KIND_AT: usize = 18;
const HEAD: u8 = 0;
const LEAF: u8 = 1;
const ENVELOPE: u8 = 2;
const MARK: u8 = 3;
const TILE: u8 = 4;
const CLUE: u8 = 5;
const MEMBER: u8 = 6;
const PURGE: u8 = 7;
const FOUNDING: u8 = 8;
const KEY: u8 = 9;
const RETAINED: u8 = 10;
const RETAINS: u8 = 11;
const AUTHOR: u8 = 12;

/// Key of the record that names a ledger's id.
#[must_use]
pub fn name_key(name: &str) -> Vec<u8> {
    [&[0, 0], name.as_bytes()].concat()
}

/// The bound above all names of ledgers.
#[must_use]
pub fn name_end() -> Vec<u8> {
    Vec::from([0, 1])
}

fn key(ledger: LedgerId, unit: &[u8], kind: u8, rest: &[&[u8]]) -> Vec<u8> {
    let place = ledger_place(ledger, if ledger.is_spread() { unit } else { &[] });
    let mut key = Vec::from([0, place]);
    key.extend(ledger.as_bytes());
    key.push(kind);
    rest.iter().for_each(|part| key.extend(*part));
    key
}

fn unit(jsn: u64) -> [u8; 8] {
    (jsn / UNIT_JOURNALS).to_be_bytes()
}

/// Whether requests are judged by the record of a reserved key, whatever was appended: all but
/// leaves, envelopes and cells. Orders are judged by leaves, too.
#[must_use]
pub fn is_judged_by(key: &[u8]) -> bool {
    let of_name = key.starts_with(&[0, 0]);
    of_name
        || match key.get(KIND_AT) {
            Some(&(HEAD | MARK | TILE | MEMBER | PURGE | FOUNDING | KEY | RETAINED | RETAINS | AUTHOR)) => true,
            Some(&CLUE) => key.len() == KIND_AT + 1 + size_of::<Digest>(),
            _ => false,
        }
}

/// Key of a ledger's head: its size and the edge of its list.
#[must_use]
pub fn head_key(ledger: LedgerId) -> Vec<u8> {
    key(ledger, &[], HEAD, &[])
}

/// Key of a journal's leaf.
#[must_use]
pub fn leaf_key(ledger: LedgerId, jsn: u64) -> Vec<u8> {
    key(ledger, &unit(jsn), LEAF, &[&jsn.to_be_bytes()])
}

/// Key of a journal's envelope.
#[must_use]
pub fn envelope_key(ledger: LedgerId, jsn: u64) -> Vec<u8> {
    key(ledger, &unit(jsn), ENVELOPE, &[&jsn.to_be_bytes()])
}

/// Key of the mark of a journal whose envelope is erased. It lies in the shard of the envelope.
#[must_use]
pub fn mark_key(ledger: LedgerId, jsn: u64) -> Vec<u8> {
    key(ledger, &unit(jsn), MARK, &[&jsn.to_be_bytes()])
}

/// Key of the envelope that a put of this key erases; `None` if it is not the key of a mark.
#[must_use]
pub fn erased_by(key: &[u8]) -> Option<Vec<u8>> {
    let is_mark = key.len() == KIND_AT + 1 + size_of::<u64>()
        && key.starts_with(&[0])
        && !key.starts_with(&[0, 0])
        && key[KIND_AT] == MARK;
    is_mark.then(|| {
        let mut envelope = Vec::from(key);
        envelope[KIND_AT] = ENVELOPE;
        envelope
    })
}

/// Key of the mark that erases the envelope of this key; `None` if it is not the key of an
/// envelope.
#[must_use]
pub fn mark_of(key: &[u8]) -> Option<Vec<u8>> {
    let mut mark = Vec::from(key);
    *mark.get_mut(KIND_AT).filter(|kind| **kind == ENVELOPE)? = MARK;
    (erased_by(&mark).as_deref() == Some(key)).then_some(mark)
}

/// Key of a tile of the ledger's list. It lies with the first journal below it.
#[must_use]
pub fn tile_key(ledger: LedgerId, level: u8, index: u64) -> Vec<u8> {
    let first = index.checked_shl(4 * (u32::from(level) + 1)).unwrap_or(0);
    key(ledger, &unit(first), TILE, &[&[level], &index.to_be_bytes()])
}

/// Key of a clue's record. It is the lowest of the clue's keys.
#[must_use]
pub fn clue_key(ledger: LedgerId, clue: &Digest) -> Vec<u8> {
    key(ledger, &clue.0, CLUE, &[&clue.0])
}

/// Key of a clue's cell. Younger cells, which have a larger ordinal, come first.
#[must_use]
pub fn cell_key(ledger: LedgerId, clue: &Digest, ordinal: u64) -> Vec<u8> {
    key(ledger, &clue.0, CLUE, &[&clue.0, &(!ordinal).to_be_bytes()])
}

/// The bound above all cells of a clue: where a cell of ordinal 0 would be.
#[must_use]
pub fn clue_end(ledger: LedgerId, clue: &Digest) -> Vec<u8> {
    cell_key(ledger, clue, 0)
}

/// Key of a member's record.
#[must_use]
pub fn member_key(ledger: LedgerId, member: MemberId) -> Vec<u8> {
    key(ledger, &[], MEMBER, &[member.as_bytes()])
}

/// The bound above all members of a ledger.
#[must_use]
pub fn member_end(ledger: LedgerId) -> Vec<u8> {
    key(ledger, &[], MEMBER + 1, &[])
}

/// Key of the body of the founding journal.
#[must_use]
pub fn founding_key(ledger: LedgerId) -> Vec<u8> {
    key(ledger, &[], FOUNDING, &[])
}

/// Key of the record of the newest purge.
#[must_use]
pub fn purge_key(ledger: LedgerId) -> Vec<u8> {
    key(ledger, &[], PURGE, &[])
}

/// Key of the record of a journal that a member keeps from purges.
#[must_use]
pub fn retained_key(ledger: LedgerId, jsn: u64) -> Vec<u8> {
    key(ledger, &[], RETAINED, &[&jsn.to_be_bytes()])
}

/// Key of the record of what a member keeps from its newest purge.
#[must_use]
pub fn retains_key(ledger: LedgerId, member: MemberId) -> Vec<u8> {
    key(ledger, &[], RETAINS, &[member.as_bytes()])
}

/// Key of the record of an author. Authors are numbered from 1 on, by their first journals.
#[must_use]
pub fn author_key(ledger: LedgerId, number: u64) -> Vec<u8> {
    key(ledger, &[], AUTHOR, &[&number.to_be_bytes()])
}

/// Whether this is the key of a record of a ledger that is no envelope.
#[must_use]
pub fn is_record_of(ledger: LedgerId, key: &[u8]) -> bool {
    key.len() > KIND_AT && key[0] == 0 && key[1] != 0 && key[2..KIND_AT] == ledger.0 && key[KIND_AT] != ENVELOPE
}

/// Key of the record that says whose key this is. It stays when the key ends, so no key has two
/// members.
#[must_use]
pub fn key_key(ledger: LedgerId, public_key: &[u8; 32]) -> Vec<u8> {
    key(ledger, &[], KEY, &[public_key])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256;

    const COMPACT: LedgerId = LedgerId([8; 16]);
    const SPREAD: LedgerId = LedgerId([9; 16]);

    fn all(ledger: LedgerId) -> Vec<Vec<u8>> {
        let clue = sha256(b"clue");
        let mut keys = Vec::from([head_key(ledger), founding_key(ledger), member_key(ledger, MemberId([3; 16]))]);
        keys.extend([purge_key(ledger), retains_key(ledger, MemberId([3; 16]))]);
        keys.extend((0..3).flat_map(|at| {
            let jsn = at * 300;
            [
                leaf_key(ledger, jsn),
                envelope_key(ledger, jsn),
                mark_key(ledger, jsn),
                tile_key(ledger, 1, at),
                retained_key(ledger, jsn),
                author_key(ledger, at),
                cell_key(ledger, &clue, at),
            ]
        }));
        keys.push(clue_key(ledger, &clue));
        keys
    }

    #[test]
    fn keys_of_a_compact_ledger_share_their_place_and_are_all_different() {
        for ledger in [COMPACT, SPREAD] {
            let keys = all(ledger);
            assert!(keys.iter().all(|key| key[0] == 0 && key[1] != 0 && key[2..18] == ledger.0));
            let mut different = keys.clone();
            different.sort();
            different.dedup();
            assert_eq!(different.len(), keys.len());
            let places: alloc::collections::BTreeSet<u8> = keys.iter().map(|key| key[1]).collect();
            assert_eq!(places.len() == 1, ledger == COMPACT, "{places:?}");
        }
    }

    #[test]
    fn cells_lie_behind_their_clue_with_the_youngest_first() {
        let clue = sha256(b"clue");
        let keys = [
            clue_key(SPREAD, &clue),
            cell_key(SPREAD, &clue, u64::MAX),
            cell_key(SPREAD, &clue, 256),
            cell_key(SPREAD, &clue, 1),
            clue_end(SPREAD, &clue),
        ];
        assert!(keys.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn requests_are_judged_by_few_records() {
        let clue = sha256(b"clue");
        let (member, key) = (member_key(COMPACT, MemberId([3; 16])), key_key(COMPACT, &[7; 32]));
        let (founding, mark) = (founding_key(COMPACT), mark_key(SPREAD, 1));
        let (purge, retained) = (purge_key(COMPACT), retained_key(SPREAD, 1));
        let (retains, author) = (retains_key(COMPACT, MemberId([3; 16])), author_key(COMPACT, 1));
        let clue_of = clue_key(SPREAD, &clue);
        let judging = [head_key(COMPACT), member, key, clue_of, founding, mark, purge, retained, retains, author];
        for key in judging.iter().chain([&name_key("grain"), &tile_key(COMPACT, 0, 0)]) {
            assert!(is_judged_by(key), "{key:?}");
        }
        let cell = cell_key(SPREAD, &clue, 1);
        for key in [leaf_key(COMPACT, 1), envelope_key(COMPACT, 1), cell] {
            assert!(!is_judged_by(&key), "{key:?}");
            assert_eq!(is_record_of(COMPACT, &key), key == leaf_key(COMPACT, 1), "{key:?}");
        }
        assert!(judging.iter().all(|key| is_record_of(COMPACT, key) != is_record_of(SPREAD, key)));
        assert!(!is_record_of(COMPACT, &name_key("grain")));
    }

    #[test]
    fn only_a_mark_erases_and_only_its_envelope() {
        for ledger in [COMPACT, SPREAD] {
            for jsn in [0, 255, 256, u64::MAX] {
                let mark = mark_key(ledger, jsn);
                assert_eq!(erased_by(&mark), Some(envelope_key(ledger, jsn)));
                assert_eq!(mark_of(&envelope_key(ledger, jsn)), Some(mark.clone()));
                assert_eq!(mark_of(&mark), None);
                assert_eq!(mark_of(&leaf_key(ledger, jsn)), None);
                assert_eq!(erased_by(&mark[..mark.len() - 1]), None);
                assert_eq!(erased_by(&[&mark[..], &[0]].concat()), None);
                assert_eq!(erased_by(&[&[1], &mark[1..]].concat()), None);
            }
            let others = all(ledger).into_iter().filter(|key| key[KIND_AT] != MARK);
            others.for_each(|key| assert_eq!(erased_by(&key), None, "{key:?}"));
        }
        // The name of a ledger may look like anything from its third byte on.
        let name = [&[0, 0][..], &mark_key(COMPACT, 1)[2..]].concat();
        assert_eq!(erased_by(&name), None);
    }

    #[test]
    fn no_name_lies_among_the_records_of_a_ledger() {
        assert!(name_key("grain") < head_key(COMPACT).into_iter().take(2).collect::<Vec<u8>>());
        assert!(name_key("grain").as_slice() < RESERVED_END);
    }
}
