//! When the entries of a log were sequenced, as far as time stamps prove it.
//!
//! An *anchor* is an entry of the log that holds stamps over a checkpoint of the same log. Entries
//! in that checkpoint are older than the stamps; entries after the anchor are younger. Neither
//! needs the log's own clock.
//!
//! Authority j stamps the log's first n entries at t, with accuracy a, and the stamp is kept in the
//! entry at sequence s >= n. For the entry at sequence q follows:
//!
//! ```text
//! lower bound by j = max { t - a : s < q }        upper bound by j = min { t + a : n > q }
//! ```
//!
//! With a quorum of m, the lower bound is the m-th largest of all authorities' lower bounds, and
//! the upper bound the m-th smallest of their upper bounds. So each is the worst that m authorities
//! give: up to m - 1 of them may lie, and it still holds. Fewer than m bounds are no bound.
//!
//! An authority whose stamps go back in time, by more than their accuracies, is set aside: nothing
//! that it stamped counts, and [`Timeline::set_aside`] names it.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    time::Duration,
};

use crate::{Moment, Stamped};

/// One authority's stamp of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The authority's index among those that are configured.
    pub authority: usize,
    /// The SHA-256 of the signer's certificate.
    pub signer: [u8; 32],
    /// The earliest time at which it can have been stamped.
    pub earliest: Moment,
    /// The latest time at which it can have been stamped.
    pub latest: Moment,
}

impl Stamp {
    /// The stamp of a token that was verified for this authority.
    #[must_use]
    pub fn new(authority: usize, stamped: &Stamped) -> Self {
        Self { authority, signer: stamped.signer, earliest: stamped.earliest(), latest: stamped.latest() }
    }
}

/// An entry of the log that holds stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The number of entries in the checkpoint that is stamped.
    pub stamped_size: u64,
    /// The anchor's own place in the log.
    pub sequence: u64,
    /// The stamps, at most one by each authority.
    pub stamps: Vec<Stamp>,
}

/// The reason why anchors are refused, alone or together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An anchor doesn't come after the one before it.
    #[error("the anchor at {sequence} doesn't come after the one before")]
    Sequence {
        /// The place of the anchor.
        sequence: u64,
    },
    /// An anchor is for a smaller log than the one before it.
    #[error("the anchor at {sequence} is for a smaller log than the one before")]
    StampedSize {
        /// The place of the anchor.
        sequence: u64,
    },
    /// An anchor is for a log that holds the anchor itself, or later entries.
    #[error("the anchor at {sequence} is for a log that holds the anchor itself")]
    StampedItself {
        /// The place of the anchor.
        sequence: u64,
    },
    /// An anchor has two stamps by one authority.
    #[error("the anchor at {sequence} has two stamps by authority {authority}")]
    StampedTwice {
        /// The place of the anchor.
        sequence: u64,
        /// The index of the authority.
        authority: usize,
    },
    /// One signer stamps for two authorities, which therefore are one.
    #[error("authorities {first} and {second} have a signer in common")]
    SharedSigner {
        /// The index of one authority.
        first: usize,
        /// The index of the other.
        second: usize,
    },
    /// An entry's lower bound is above its upper one: more authorities lie than the quorum allows.
    #[error(
        "the entry at {sequence} is from after {lower}, and from before {upper}: authorities contradict each other"
    )]
    Contradiction {
        /// The place of the entry.
        sequence: u64,
        /// The lower bound of its time.
        lower: Moment,
        /// The upper bound of its time.
        upper: Moment,
    },
}

/// The bounds that all anchors of a log give.
#[derive(Clone, Debug)]
pub struct Timeline {
    quorum: NonZeroUsize,
    authorities: Vec<Bounds>,
    set_aside: Vec<usize>,
}

/// The bounds that one authority gives.
#[derive(Clone, Debug, Default)]
struct Bounds {
    /// For each anchor its sequence, and the latest lower bound of this anchor and all before.
    lower: Vec<(u64, Moment)>,
    /// For each anchor its stamped size, and the earliest upper bound of this anchor and all after.
    upper: Vec<(u64, Moment)>,
    goes_back: bool,
}

impl Timeline {
    /// The bounds by these anchors, which are in the order of the log: sequences ascend, stamped
    /// sizes never descend, and each is at most the anchor's own sequence. Where `quorum` is m, up
    /// to m - 1 authorities may lie.
    ///
    /// # Errors
    ///
    /// Names the rule that the anchors break.
    pub fn new(anchors: &[Anchor], quorum: NonZeroUsize) -> Result<Self, Error> {
        check_order(anchors)?;
        check_authorities(anchors)?;
        let mut authorities: BTreeMap<usize, Bounds> = BTreeMap::new();
        for anchor in anchors {
            for stamp in &anchor.stamps {
                authorities.entry(stamp.authority).or_default().push(anchor, stamp);
            }
        }
        let set_aside = authorities.iter().filter(|(_, bounds)| bounds.goes_back).map(|(index, _)| *index).collect();
        let authorities = authorities.into_values().filter(|bounds| !bounds.goes_back).map(Bounds::finish).collect();
        Ok(Self { quorum, authorities, set_aside })
    }

    /// The indices of the authorities whose stamps go back in time.
    #[must_use]
    pub fn set_aside(&self) -> &[usize] {
        &self.set_aside
    }

    /// When the entry at this sequence was sequenced.
    ///
    /// A statement that names the root of the log's first n entries was made after the lower bound
    /// for sequence n.
    ///
    /// # Errors
    ///
    /// [`Error::Contradiction`] if the lower bound is above the upper one.
    pub fn interval(&self, sequence: u64) -> Result<Interval, Error> {
        let worst = self.quorum.get() - 1;
        let mut lower: Vec<Moment> = self.authorities.iter().filter_map(|bounds| bounds.lower(sequence)).collect();
        lower.sort_unstable_by(|one, other| other.cmp(one));
        let mut upper: Vec<Moment> = self.authorities.iter().filter_map(|bounds| bounds.upper(sequence)).collect();
        upper.sort_unstable();
        let interval = Interval { lower: lower.get(worst).copied(), upper: upper.get(worst).copied() };
        match interval {
            Interval { lower: Some(lower), upper: Some(upper) } if lower > upper => {
                Err(Error::Contradiction { sequence, lower, upper })
            }
            interval => Ok(interval),
        }
    }
}

fn check_order(anchors: &[Anchor]) -> Result<(), Error> {
    for anchor in anchors {
        if anchor.stamped_size > anchor.sequence {
            return Err(Error::StampedItself { sequence: anchor.sequence });
        }
    }
    for pair in anchors.windows(2) {
        let sequence = pair[1].sequence;
        if sequence <= pair[0].sequence {
            return Err(Error::Sequence { sequence });
        }
        if pair[1].stamped_size < pair[0].stamped_size {
            return Err(Error::StampedSize { sequence });
        }
    }
    Ok(())
}

/// Refuses what would let one authority count twice.
fn check_authorities(anchors: &[Anchor]) -> Result<(), Error> {
    let mut signers: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    for anchor in anchors {
        let mut seen = BTreeSet::new();
        for stamp in &anchor.stamps {
            if !seen.insert(stamp.authority) {
                return Err(Error::StampedTwice { sequence: anchor.sequence, authority: stamp.authority });
            }
            let first = *signers.entry(stamp.signer).or_insert(stamp.authority);
            if first != stamp.authority {
                return Err(Error::SharedSigner { first, second: stamp.authority });
            }
        }
    }
    Ok(())
}

impl Bounds {
    fn push(&mut self, anchor: &Anchor, stamp: &Stamp) {
        let before = self.lower.last().map(|(_, lower)| *lower);
        self.goes_back |= before.is_some_and(|before| stamp.latest < before);
        self.lower.push((anchor.sequence, before.map_or(stamp.earliest, |before| before.max(stamp.earliest))));
        self.upper.push((anchor.stamped_size, stamp.latest));
    }

    fn finish(mut self) -> Self {
        let mut earliest: Option<Moment> = None;
        for (_, upper) in self.upper.iter_mut().rev() {
            *upper = earliest.map_or(*upper, |earliest| earliest.min(*upper));
            earliest = Some(*upper);
        }
        self
    }

    fn lower(&self, sequence: u64) -> Option<Moment> {
        let before = self.lower.partition_point(|(anchor, _)| *anchor < sequence);
        before.checked_sub(1).map(|last| self.lower[last].1)
    }

    fn upper(&self, sequence: u64) -> Option<Moment> {
        let first = self.upper.partition_point(|(size, _)| *size <= sequence);
        self.upper.get(first).map(|(_, upper)| *upper)
    }
}

/// The time of an entry: after `lower`, and at `upper` or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// `None` if no quorum stamped anything before the entry.
    pub lower: Option<Moment>,
    /// `None` if no quorum has stamped the entry yet.
    pub upper: Option<Moment>,
}

impl Interval {
    /// From the lower to the upper bound. `None` if one of them is missing.
    #[must_use]
    pub fn width(&self) -> Option<Duration> {
        let nanoseconds = self.upper?.nanoseconds() - self.lower?.nanoseconds();
        let seconds = u64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
        let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?;
        Some(Duration::new(seconds, rest))
    }

    /// Whether both bounds are known, and lie no further apart than `window`.
    #[must_use]
    pub fn is_within(&self, window: Duration) -> bool {
        self.width().is_some_and(|width| width <= window)
    }

    /// Whether an entry that names this time may lie in the interval, if the clock by which it was
    /// named was off by no more than `tolerance`.
    #[must_use]
    pub fn admits(&self, time: Moment, tolerance: Duration) -> bool {
        let tolerance = i128::from(tolerance.as_secs()) * 1_000_000_000 + i128::from(tolerance.subsec_nanos());
        let is_after = self.lower.is_none_or(|lower| lower.nanoseconds() - tolerance <= time.nanoseconds());
        let is_before = self.upper.is_none_or(|upper| time.nanoseconds() <= upper.nanoseconds() + tolerance);
        is_after && is_before
    }
}

#[cfg(test)]
mod tests;
