//! The stamps that name versions, as far as the log is known.

use coppice_types::Stamp;

/// Most rollbacks that are remembered. Beyond that, older views read through.
pub(super) const CUTS_MAX: usize = 1024;

/// A rollback. Of the versions of older epochs, those up to the base stand.
#[derive(Clone, Copy, Debug)]
struct Cut {
    epoch: u64,
    base: u64,
}

/// A version that a view reads, with the generation of the cache in which the view was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub stamp: Stamp,
    pub generation: u64,
}

/// Says which stamps name versions that stand, from the version on where knowledge begins.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// The newest version whose changes are all known, by its newest name; `None` before the first
    /// header.
    frontier: Option<Stamp>,
    /// Where knowledge begins. The epochs of versions up to it are unknown, except for its own.
    start: Stamp,
    /// Rollbacks, in ascending order of epochs and of bases.
    cuts: Vec<Cut>,
    /// The oldest version that is not pruned.
    boundary: u64,
    /// Grows whenever cuts are forgotten. It is then unknown whether places of older generations
    /// stand.
    generation: u64,
}

impl Lineage {
    /// Forgets everything, and begins at a version.
    pub(super) fn begin(&mut self, at: Stamp, boundary: u64) {
        let generation = self.generation + 1;
        *self = Self { frontier: Some(at), start: at, boundary, generation, cuts: Vec::new() };
    }

    /// Forgets everything.
    pub(super) fn end(&mut self) {
        *self = Self { generation: self.generation + 1, ..Self::default() };
    }

    pub(super) fn frontier(&self) -> Option<Stamp> {
        self.frontier
    }

    pub(super) fn boundary(&self) -> u64 {
        self.boundary
    }

    /// The place of a version, whether it stands or not.
    pub(super) fn place(&self, stamp: Stamp) -> Place {
        Place { stamp, generation: self.generation }
    }

    /// The number that a view keeps of an answer at its stamp: see [`Self::confirms`].
    pub(super) fn confirmed(&self) -> u64 {
        self.frontier.unwrap_or_default().epoch.0 + 1
    }

    /// Whether a stamp is not reached yet.
    pub(super) fn is_above(&self, at: Stamp) -> bool {
        self.frontier.is_none_or(|frontier| at > frontier)
    }

    /// Whether the ledger's answer about a place holds in the present lineage.
    pub(super) fn stands(&self, at: Place) -> bool {
        let Some(frontier) = self.frontier else { return false };
        let (epoch, version) = (at.stamp.epoch.0, at.stamp.version.0);
        at.generation == self.generation
            && !self.is_above(at.stamp)
            && (self.boundary..=frontier.version.0).contains(&version)
            && !self.cuts.iter().any(|cut| cut.epoch > epoch && version > cut.base)
    }

    /// Whether a stamp certainly names a version. The name of a version has the epoch in which it
    /// was committed. The base of a rollback has a second name in the epoch that begins.
    pub(super) fn names(&self, at: Stamp) -> bool {
        if at == self.start {
            return true;
        }
        let (epoch, version) = (at.epoch.0, at.version.0);
        let mut owner = self.start.epoch.0;
        for cut in &self.cuts {
            if (cut.epoch, cut.base) == (epoch, version) {
                return true;
            }
            if cut.base < version {
                owner = cut.epoch;
            }
        }
        version > self.start.version.0 && epoch == owner
    }

    /// Whether a stamp that the ledger has answered to still names a version. `confirmed` is one
    /// above the epoch at that time, and 0 if there was no answer. A rollback to a version ends the
    /// second name that an earlier rollback gave it, so the ledger has to be asked again.
    pub(super) fn confirms(&self, at: Stamp, confirmed: u64) -> bool {
        confirmed > 0 && !self.cuts.iter().any(|cut| cut.epoch >= confirmed && cut.base == at.version.0)
    }

    /// Moves the frontier to a version.
    pub(super) fn advance(&mut self, to: Stamp) {
        self.frontier = Some(to);
    }

    /// Raises the oldest version that is not pruned.
    pub(super) fn prune(&mut self, boundary: u64) {
        self.boundary = self.boundary.max(boundary);
    }

    /// Makes an older version head, in the epoch of the stamp.
    pub(super) fn roll_back(&mut self, head: Stamp) {
        self.frontier = Some(head);
        // A cut whose base is not below the new base is covered by the new cut.
        let covered = self.cuts.iter().rposition(|cut| cut.base < head.version.0).map_or(0, |last| last + 1);
        self.cuts.truncate(covered);
        self.cuts.push(Cut { epoch: head.epoch.0, base: head.version.0 });
        if self.start.version >= head.version {
            self.start = head;
        }
        if self.cuts.len() > CUTS_MAX {
            let oldest = self.cuts.remove(0);
            self.start = Stamp::new(oldest.epoch, oldest.base);
            self.generation += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn cuts(&self) -> usize {
        self.cuts.len()
    }
}
