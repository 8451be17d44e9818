//! The ledgers of members, as far as the root log must know them: how many journals each has, and
//! the newest version that appended to one.
//!
//! Numbers of journals have no gaps and are never used again. A coordinator takes care of that, and
//! this table is the second line of defence: a version that does not continue it is refused, and so
//! is a rollback that would take journals back.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::{
    LedgerId, Version,
    codec::{Error, Reader, Writer},
};
use coppice_verify::journal::{AppendEntry, HeadEntry};

use crate::codec::{len32, list};

/// Limit on the number of ledgers.
pub const LEDGERS_MAX: usize = 65_536;

/// The sizes of all ledgers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledgers {
    sizes: BTreeMap<LedgerId, u64>,
    /// The newest version that appended to a ledger; 0 before the first.
    floor: Version,
}

/// The appends of a version that is being checked.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    sizes: BTreeMap<LedgerId, u64>,
    /// Ledgers with an append whose head has not come yet.
    open: BTreeSet<LedgerId>,
    /// The ledger of the newest head.
    last: Option<LedgerId>,
}

impl Ledgers {
    /// The newest version that appended to a ledger; 0 before the first.
    pub(crate) fn floor(&self) -> Version {
        self.floor
    }

    /// Checks that an append continues its ledger.
    pub(crate) fn check_append(&self, growth: &mut Growth, append: &AppendEntry) -> Result<(), &'static str> {
        let known = growth.sizes.get(&append.ledger).or_else(|| self.sizes.get(&append.ledger));
        if known.is_none() && self.sizes.len() + growth.sizes.len() >= LEDGERS_MAX {
            return Err("more ledgers than there may be");
        }
        let size = known.copied().unwrap_or(0);
        if append.first_jsn != size {
            return Err("an append that does not continue its ledger");
        }
        growth.sizes.insert(append.ledger, size + u64::from(append.count));
        growth.open.insert(append.ledger);
        Ok(())
    }

    /// Checks that a head has the size to which the version's appends lead.
    pub(crate) fn check_head(&self, growth: &mut Growth, head: &HeadEntry) -> Result<(), &'static str> {
        if growth.last >= Some(head.ledger) {
            return Err("heads that are not in the order of their ledgers");
        }
        growth.last = Some(head.ledger);
        let before = self.sizes.get(&head.ledger).copied().unwrap_or(0);
        let grown = growth.open.remove(&head.ledger);
        if !grown || head.size_before != before || growth.sizes.get(&head.ledger) != Some(&head.size) {
            return Err("a head of another size than its appends lead to");
        }
        Ok(())
    }

    /// Takes over the appends of a version.
    pub(crate) fn grow(&mut self, growth: Growth, version: Version) {
        assert!(growth.is_whole(), "each append was followed by a head");
        if !growth.sizes.is_empty() {
            self.floor = version;
        }
        self.sizes.extend(growth.sizes);
        assert!(self.sizes.len() <= LEDGERS_MAX, "the number of ledgers was checked");
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.floor.0);
        out.u32(len32(self.sizes.len()));
        for (ledger, size) in &self.sizes {
            out.raw(ledger.as_bytes());
            out.u64(*size);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>, head: Version) -> Result<Self, Error> {
        let floor = Version(input.u64()?);
        let all: Vec<(LedgerId, u64)> = list(input, |input| Ok((LedgerId(input.bytes16()?), input.u64()?)))?;
        let ordered = all.is_sorted_by(|a, b| a.0 < b.0) && all.iter().all(|(_, size)| *size > 0);
        let fits = all.len() <= LEDGERS_MAX && floor <= head && (floor == Version(0)) == all.is_empty();
        if ordered && fits {
            Ok(Self { sizes: all.into_iter().collect(), floor })
        } else {
            Err(Error::Malformed("ledgers"))
        }
    }
}

impl Growth {
    /// Whether each ledger with an append has its head.
    pub(crate) fn is_whole(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::Digest;

    use super::*;

    fn append(seed: u8, first_jsn: u64, count: u32) -> AppendEntry {
        AppendEntry {
            ledger: LedgerId([seed; 16]),
            signed: Vec::new(),
            signature: [0; 64],
            first_jsn,
            count,
            leaves_root: Digest::default(),
            shards: Vec::new(),
        }
    }

    fn head(seed: u8, size_before: u64, size: u64) -> HeadEntry {
        HeadEntry { ledger: LedgerId([seed; 16]), size_before, size, root: Digest::default(), shards: Vec::new() }
    }

    /// A table with ledger 1 of 3 journals and ledger 2 of 1.
    fn two() -> Ledgers {
        let (mut ledgers, mut growth) = (Ledgers::default(), Growth::default());
        for entry in [append(1, 0, 1), append(2, 0, 1), append(1, 1, 2)] {
            ledgers.check_append(&mut growth, &entry).expect("it continues");
        }
        for entry in [head(1, 0, 3), head(2, 0, 1)] {
            ledgers.check_head(&mut growth, &entry).expect("it fits");
        }
        ledgers.grow(growth, Version(5));
        ledgers
    }

    #[test]
    fn numbers_have_no_gaps_within_a_version_and_across_versions() {
        let ledgers = two();
        assert_eq!(ledgers.floor(), Version(5));
        for first in [0, 2, 4] {
            let mut growth = Growth::default();
            assert!(ledgers.check_append(&mut growth, &append(1, first, 1)).is_err());
            assert!(growth.is_whole(), "a refused append leaves nothing");
        }
        let mut growth = Growth::default();
        assert!(ledgers.check_append(&mut growth, &append(1, 3, 4)).is_ok());
        assert!(ledgers.check_append(&mut growth, &append(1, 3, 1)).is_err());
        assert!(ledgers.check_append(&mut growth, &append(1, 7, 1)).is_ok());
        for wrong in [head(1, 3, 7), head(1, 2, 8), head(2, 1, 2)] {
            let mut growth = Growth { sizes: growth.sizes.clone(), open: growth.open.clone(), last: None };
            assert!(ledgers.check_head(&mut growth, &wrong).is_err(), "{wrong:?}");
        }
        assert!(ledgers.check_head(&mut growth, &head(1, 3, 8)).is_ok());
        assert!(ledgers.check_head(&mut growth, &head(1, 3, 8)).is_err(), "one head for each ledger");
        assert!(growth.is_whole());
    }

    #[test]
    fn there_are_no_more_ledgers_than_there_may_be() {
        let id = |at: usize| LedgerId(u128::try_from(at).expect("small").to_be_bytes());
        let ledgers = Ledgers { sizes: (0..LEDGERS_MAX - 1).map(|at| (id(at), 1)).collect(), floor: Version(1) };
        let new = |at: usize| AppendEntry { ledger: id(at), ..append(0, 0, 1) };
        let mut growth = Growth::default();
        assert!(ledgers.check_append(&mut growth, &new(LEDGERS_MAX)).is_ok());
        assert!(ledgers.check_append(&mut growth, &new(LEDGERS_MAX + 1)).is_err());
        assert!(ledgers.check_append(&mut growth, &AppendEntry { ledger: id(7), ..append(0, 1, 1) }).is_ok());
    }

    #[test]
    fn the_table_has_one_encoding() {
        for ledgers in [Ledgers::default(), two()] {
            let mut out = Writer::new();
            ledgers.encode(&mut out);
            let bytes = out.into_bytes();
            assert_eq!(Ledgers::decode(&mut Reader::new(&bytes), Version(5)), Ok(ledgers.clone()));
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Ledgers::decode(&mut Reader::new(&flipped), Version(5)) {
                    let mut out = Writer::new();
                    other.encode(&mut out);
                    assert_eq!(out.into_bytes(), flipped[..flipped.len()], "bit {bit}");
                }
            }
        }
        let mut out = Writer::new();
        two().encode(&mut out);
        assert!(Ledgers::decode(&mut Reader::new(&out.into_bytes()), Version(4)).is_err(), "a floor above head");
    }
}
