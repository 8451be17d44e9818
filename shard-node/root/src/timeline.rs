//! The standing versions: their names, and where their headers are.
//!
//! Commits follow each other in the log except where a rollback or prune lies between them. So the
//! standing versions are kept as runs, and memory grows with admin operations, not with versions. A
//! rollback cuts the runs above its target.
//!
//! ```text
//!  log       0   1   2   3   4=rollback to 1   5   6
//!  version   0   1  (2) (3)                    2   3
//!  runs     [0 .. 1]                          [2 .. 3]
//! ```

use coppice_types::{
    Epoch, Sequence, Stamp, Version,
    codec::{Error, Reader, Writer},
};
use coppice_verify::epochs::{Epochs, Pair};

use crate::codec::{len32, list};

/// The versions from `first` up to the next run or the head. Their headers follow each other in the
/// log, beginning at `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: Version,
    sequence: Sequence,
    epoch: Epoch,
}

/// A logged rollback or prune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    /// The operation's own header.
    pub(crate) sequence: Sequence,
    /// The header of its target or boundary version.
    pub(crate) target: Sequence,
}

/// The reason why a version can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    NotYet,
    Pruned,
    RolledBack,
}

/// A standing version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sequence: Sequence,
    pub(crate) stamp: Stamp,
}

/// The versions from genesis to head, the epochs, and the admin operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    head: Stamp,
    boundary: Version,
    /// The highest version that was ever committed, standing or not.
    highest: Version,
    runs: Vec<Run>,
    epochs: Epochs,
    admins: Vec<Admin>,
}

impl Timeline {
    /// The timeline right after genesis.
    pub(crate) fn new() -> Self {
        Self {
            head: Stamp::default(),
            boundary: Version(0),
            highest: Version(0),
            runs: vec![Run { first: Version(0), sequence: Sequence(0), epoch: Epoch(0) }],
            epochs: Epochs::new(),
            admins: Vec::new(),
        }
    }

    pub(crate) fn head(&self) -> Stamp {
        self.head
    }

    pub(crate) fn boundary(&self) -> Version {
        self.boundary
    }

    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// The admin operations after number `number`, each with its number. Numbers count from 1.
    pub(crate) fn admins_after(&self, number: u64) -> impl Iterator<Item = (u64, Admin)> + '_ {
        let skipped = usize::try_from(number).unwrap_or(usize::MAX);
        (1..).zip(self.admins.iter().copied()).skip(skipped)
    }

    /// The standing version of a number that can be read. If an epoch is given, the version must
    /// have stood in that epoch (PROTOCOL 7.2).
    pub(crate) fn find(&self, version: Version, epoch: Option<Epoch>) -> Result<Found, Unreadable> {
        let found = self.find_header(version, epoch)?;
        if version < self.boundary { Err(Unreadable::Pruned) } else { Ok(found) }
    }

    /// Like [`Timeline::find`], but also finds versions that were pruned: their headers stay.
    pub(crate) fn find_header(&self, version: Version, epoch: Option<Epoch>) -> Result<Found, Unreadable> {
        if let Some(epoch) = epoch {
            // Of all later kept epochs, the next one started from the lowest version.
            let later = self.epochs.pairs().iter().find(|pair| pair.epoch > epoch);
            if later.is_some_and(|pair| version > pair.base) {
                return Err(Unreadable::RolledBack);
            }
            if epoch > self.head.epoch {
                return Err(Unreadable::NotYet);
            }
        }
        if version > self.head.version {
            // Without an epoch, a number that once existed was rolled back. With an epoch, it lies
            // in that epoch's future.
            let gone = epoch.is_none() && version <= self.highest;
            return Err(if gone { Unreadable::RolledBack } else { Unreadable::NotYet });
        }
        Ok(self.locate(version))
    }

    fn locate(&self, version: Version) -> Found {
        assert!(version <= self.head.version, "only standing versions are located");
        let run = self.run_of(version);
        let sequence = Sequence(run.sequence.0 + (version.0 - run.first.0));
        Found { sequence, stamp: Stamp { epoch: run.epoch, version } }
    }

    /// Place of a standing version's header, and how many standing versions from there on have
    /// headers that follow each other in the log.
    pub(crate) fn row(&self, version: Version) -> (Sequence, u64) {
        let at = self.runs.partition_point(|run| run.first <= version);
        let end = self.runs.get(at).map_or(self.head.version.0 + 1, |run| run.first.0);
        (self.locate(version).sequence, end - version.0)
    }

    /// The run that a standing version lies in.
    fn run_of(&self, version: Version) -> Run {
        let at = self.runs.partition_point(|run| run.first <= version);
        assert!(at > 0, "the first run starts at version 0");
        self.runs[at - 1]
    }

    pub(crate) fn commit(&mut self, sequence: Sequence) {
        let version = self.head.version.next();
        let run = self.run_of(self.head.version);
        assert!(sequence > run.sequence, "a later version has a later header");
        let follows = run.epoch == self.head.epoch && run.sequence.0 + (version.0 - run.first.0) == sequence.0;
        if !follows {
            self.runs.push(Run { first: version, sequence, epoch: self.head.epoch });
        }
        self.head.version = version;
        self.highest = self.highest.max(version);
    }

    /// Rolls back to a standing version. Returns the place of its header in the log.
    pub(crate) fn roll_back(&mut self, target: Version, sequence: Sequence) -> Sequence {
        assert!(target >= self.boundary, "a pruned version is not a target");
        let target_sequence = self.locate(target).sequence;
        self.admins.push(Admin { sequence, target: target_sequence });
        self.epochs.roll_back(self.head.epoch.next(), target);
        self.runs.retain(|run| run.first <= target);
        self.head = Stamp { epoch: self.head.epoch.next(), version: target };
        target_sequence
    }

    pub(crate) fn prune(&mut self, before: Version, sequence: Sequence) {
        assert!(before >= self.boundary, "the boundary never falls");
        self.admins.push(Admin { sequence, target: self.locate(before).sequence });
        self.boundary = before;
        assert!(self.boundary <= self.head.version, "the head is never pruned");
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.stamp(self.head);
        out.u64(self.boundary.0);
        out.u64(self.highest.0);
        out.u32(len32(self.runs.len()));
        for run in &self.runs {
            out.u64(run.first.0);
            out.u64(run.sequence.0);
            out.u64(run.epoch.0);
        }
        out.u32(len32(self.epochs.pairs().len()));
        for pair in self.epochs.pairs() {
            out.u64(pair.epoch.0);
            out.u64(pair.base.0);
        }
        out.u32(len32(self.admins.len()));
        for admin in &self.admins {
            out.u64(admin.sequence.0);
            out.u64(admin.target.0);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let timeline = Self {
            head: input.stamp()?,
            boundary: Version(input.u64()?),
            highest: Version(input.u64()?),
            runs: list(input, |input| {
                let (first, sequence) = (Version(input.u64()?), Sequence(input.u64()?));
                Ok(Run { first, sequence, epoch: Epoch(input.u64()?) })
            })?,
            epochs: Epochs::from_pairs(list(input, |input| {
                Ok(Pair { epoch: Epoch(input.u64()?), base: Version(input.u64()?) })
            })?)
            .ok_or(Error::Malformed("epochs"))?,
            admins: list(input, |input| {
                Ok(Admin { sequence: Sequence(input.u64()?), target: Sequence(input.u64()?) })
            })?,
        };
        if timeline.highest < timeline.head.version {
            return Err(Error::Malformed("highest version"));
        }
        if timeline.is_consistent() { Ok(timeline) } else { Err(Error::Malformed("timeline")) }
    }

    /// Whether runs, boundary and head fit together, as they do in everything this code writes.
    fn is_consistent(&self) -> bool {
        let (Some(oldest), Some(newest)) = (self.runs.first(), self.runs.last()) else { return false };
        let ascend = |pair: &[Run]| pair[0].first < pair[1].first && pair[0].sequence < pair[1].sequence;
        oldest.first == Version(0)
            && self.runs.windows(2).all(ascend)
            && newest.first <= self.head.version
            && self.boundary <= self.head.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(timeline: &Timeline) -> Vec<(u64, u64)> {
        timeline.epochs.pairs().iter().map(|pair| (pair.epoch.0, pair.base.0)).collect()
    }

    fn commit_until(timeline: &mut Timeline, version: u64, sequence: &mut u64) {
        while timeline.head().version.0 < version {
            timeline.commit(Sequence(*sequence));
            *sequence += 1;
        }
    }

    /// PROTOCOL 2.4: if all pairs (0,0) (1,50) (2,20) were kept, the dead version (0,30) would
    /// pass.
    #[test]
    fn a_dead_version_of_epoch_0_does_not_stand_after_a_deeper_rollback() {
        let (mut timeline, mut sequence) = (Timeline::new(), 1);
        commit_until(&mut timeline, 60, &mut sequence);
        timeline.roll_back(Version(50), Sequence(sequence));
        sequence += 1;
        assert_eq!(pairs(&timeline), [(0, 0), (1, 50)]);
        commit_until(&mut timeline, 55, &mut sequence);
        timeline.roll_back(Version(20), Sequence(sequence));
        sequence += 1;
        assert_eq!(pairs(&timeline), [(0, 0), (2, 20)]);
        commit_until(&mut timeline, 40, &mut sequence);
        assert_eq!(timeline.find(Version(30), Some(Epoch(0))), Err(Unreadable::RolledBack));
        assert_eq!(timeline.find(Version(52), Some(Epoch(1))), Err(Unreadable::RolledBack));
        assert_eq!(timeline.find(Version(30), Some(Epoch(2))).map(|found| found.stamp), Ok(Stamp::new(2, 30)));
        assert_eq!(timeline.find(Version(30), None).map(|found| found.stamp), Ok(Stamp::new(2, 30)));
        assert_eq!(timeline.find(Version(20), Some(Epoch(0))).map(|found| found.stamp), Ok(Stamp::new(0, 20)));
    }

    #[test]
    fn another_name_of_a_version_is_answered_with_its_original_name() {
        let (mut timeline, mut sequence) = (Timeline::new(), 1);
        commit_until(&mut timeline, 5, &mut sequence);
        timeline.roll_back(Version(5), Sequence(sequence));
        assert_eq!(timeline.head(), Stamp::new(1, 5));
        assert_eq!(timeline.find(Version(5), Some(Epoch(1))).map(|found| found.stamp), Ok(Stamp::new(0, 5)));
        assert_eq!(timeline.find(Version(6), Some(Epoch(1))), Err(Unreadable::NotYet));
        assert_eq!(timeline.find(Version(6), None), Err(Unreadable::NotYet), "it never was");
        timeline.roll_back(Version(2), Sequence(sequence + 1));
        assert_eq!(timeline.find(Version(4), None), Err(Unreadable::RolledBack), "it was, and is not again yet");
        assert_eq!(timeline.find(Version(6), None), Err(Unreadable::NotYet));
        let mut out = Writer::new();
        timeline.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(Timeline::decode(&mut Reader::new(&bytes)).expect("its own bytes"), timeline);
        assert_eq!(timeline.find(Version(5), Some(Epoch(2))), Err(Unreadable::NotYet));
    }

    #[test]
    fn two_rollbacks_to_genesis_leave_epoch_0_and_the_last() {
        let mut timeline = Timeline::new();
        timeline.roll_back(Version(0), Sequence(1));
        timeline.roll_back(Version(0), Sequence(2));
        assert_eq!(pairs(&timeline), [(0, 0), (2, 0)]);
        assert_eq!(timeline.find(Version(0), Some(Epoch(0))).map(|found| found.sequence), Ok(Sequence(0)));
    }
}
