//! Which versions stand in the mirrored log, by the rules of an audit.
//!
//! Memory grows with rollbacks and key changes alone: the versions themselves are read from the
//! mirror when they are needed.

use coppice_client::audit::Founding;
use coppice_types::{Digest, Stamp, Version};
use coppice_verify::{
    audit::{Line, LogRules},
    header::{Body, Header},
};

use crate::{
    error::{Error, damaged},
    mirror::Mirror,
};

/// The reason why an audit stops.
#[derive(Debug)]
pub enum Stop {
    /// Something is wrong here, or was not told. Nothing is known to be wrong with the ledger.
    Failed(Error),
    /// The ledger breaks a rule.
    Found(Finding),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What is wrong with the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The version that is wrong, or the last one before the entry that is.
    pub stamp: Stamp,
    /// The entry of the log, if it is known.
    pub entry: Option<u64>,
    /// The shard that differs, if it is known.
    pub shard: Option<u32>,
    /// A description.
    pub what: String,
}

/// A version of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of its entry.
    pub sequence: u64,
    pub version: Version,
    /// Entry hash of its header.
    pub hash: Digest,
}

/// The rules along a log up to a size, and its rollbacks.
///
/// Invariant: the sequences and the targets of `bounds` ascend. A version stands if no later
/// rollback has a smaller target, so a rollback is left out if a later one has a target that is not
/// larger.
#[derive(Debug, Default)]
pub struct Standing {
    rules: LogRules,
    size: u64,
    founding: Option<Founding>,
    /// The entry before, for findings.
    last: Stamp,
    /// Index and target of rollbacks.
    bounds: Vec<(u64, Version)>,
}

impl Standing {
    /// Size of the log that was taken.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The parts of genesis; `None` as long as the log is empty.
    #[must_use]
    pub fn founding(&self) -> Option<&Founding> {
        self.founding.as_ref()
    }

    /// Takes the entries of the mirror up to a size.
    ///
    /// # Errors
    /// [`Stop::Found`] if one breaks a rule. Then this must not be used any more.
    pub fn extend(&mut self, mirror: &Mirror, size: u64) -> Result<(), Stop> {
        let mut stopped = Ok(());
        mirror.each(self.size, size, |index, entry| {
            stopped = self.take(mirror, index, entry);
            stopped.is_ok()
        })?;
        stopped
    }

    fn take(&mut self, mirror: &Mirror, index: u64, entry: &[u8]) -> Result<(), Stop> {
        let broken = |stamp, what: String| Stop::Found(Finding { stamp, entry: Some(index), shard: None, what });
        let header = Header::decode(entry)
            .map_err(|error| broken(self.last, format!("entry {index} of its log, after this version: {error}")))?;
        let stamp = header.stamp;
        let mut target = None;
        match &header.body {
            Body::Genesis(genesis) => self.founding = Some(Founding::of(genesis)),
            Body::Rollback(rollback) => {
                target = find(mirror, index, rollback.target.version)?.map(|(_, line)| line);
                while self.bounds.pop_if(|(_, target)| *target >= rollback.target.version).is_some() {}
                self.bounds.push((index, rollback.target.version));
            }
            _ => {}
        }
        let taken = self.rules.take(header, target.as_ref());
        taken.map_err(|rule| broken(stamp, format!("its header: {}", rule.0)))?;
        (self.last, self.size) = (stamp, index + 1);
        Ok(())
    }

    /// The smallest size at which no version stands that a later rollback takes back.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.bounds.last().map_or(0, |(index, _)| index + 1)
    }

    /// The smallest target of the rollbacks behind an entry; `None` if there are none.
    #[must_use]
    pub fn bound_behind(&self, sequence: u64) -> Option<Version> {
        let first = self.bounds.partition_point(|(index, _)| *index <= sequence);
        self.bounds.get(first).map(|(_, target)| *target)
    }

    /// Whether a version with its commit at this entry stands.
    #[must_use]
    pub fn stands(&self, sequence: u64, version: Version) -> bool {
        self.bound_behind(sequence).is_none_or(|bound| version <= bound)
    }

    /// The next versions that stand behind an entry, at most so many, each with its entry.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror is damaged.
    pub fn behind(&self, mirror: &Mirror, sequence: u64, most: usize) -> Result<Vec<(u64, Line)>, Error> {
        let (mut found, mut torn) = (Vec::new(), None);
        mirror.each(sequence + 1, self.size, |index, entry| {
            match Header::decode(entry) {
                Ok(header) if header.body == Body::Commit && self.stands(index, header.stamp.version) => {
                    found.push((index, Line::of(&header)));
                }
                Ok(_) => {}
                Err(_) => torn = Some(index),
            }
            found.len() < most && torn.is_none()
        })?;
        // It was decoded before.
        torn.map_or(Ok(found), |index| Err(damaged(format!("log: entry {index} has changed"))))
    }

    /// Number of commits from this entry on that no longer stand.
    ///
    /// # Errors
    /// Like [`Standing::behind`].
    pub fn vanished(&self, mirror: &Mirror, from: u64) -> Result<u64, Error> {
        if self.bounds.last().is_none_or(|(index, _)| *index < from) {
            return Ok(0);
        }
        let mut vanished = 0;
        mirror.each(from, self.size, |index, entry| {
            if let Ok(header) = Header::decode(entry) {
                vanished += u64::from(header.body == Body::Commit && !self.stands(index, header.stamp.version));
            }
            true
        })?;
        Ok(vanished)
    }
}

/// The commit, or genesis, of a version that stands in a log of `size` entries; `None` if there is
/// none. The time that it takes follows how far back the version is.
///
/// # Errors
/// If the disk refuses, or the mirror is damaged.
pub fn find(mirror: &Mirror, size: u64, version: Version) -> Result<Option<(Place, Line)>, Error> {
    let (mut bound, mut found) = (None, None);
    mirror.each_back(size, |sequence, entry| {
        let Ok(header) = Header::decode(entry) else { return false };
        match &header.body {
            Body::Genesis(_) | Body::Commit
                if header.stamp.version == version && bound.is_none_or(|bound| version <= bound) =>
            {
                let line = Line::of(&header);
                found = Some((Place { sequence, version, hash: line.hash }, line));
            }
            Body::Rollback(rollback) => {
                let target = rollback.target.version;
                bound = Some(bound.map_or(target, |bound: Version| bound.min(target)));
            }
            _ => {}
        }
        found.is_none()
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests;
