//! The leader's knowledge of sessions. It is a part of the root group's knowledge, and the root
//! group decides.
//!
//! `TakeOver` returns the most recently used sessions completely. The leader learns the others by
//! asking, number by number. It may know a session that the root group has ended since. Then the
//! root group refuses the append, and the leader takes over again.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::{Digest, Sequence, SessionId};

/// Limit on the number of sessions that are remembered. A dropped session is asked for again.
const SESSIONS_MAX: usize = 4096;

/// One committed batch of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The hash of the batch that was committed under the number.
    pub batch_hash: Digest,
    /// The place of the header that committed the batch.
    pub sequence: Sequence,
    /// The batch's place in that header's journal.
    pub journal_index: u32,
    /// Whether a rollback has undone the batch since.
    pub rolled_back: bool,
}

/// The state of one number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberStanding {
    /// The number is not committed yet.
    New,
    /// The number is committed.
    Done(Done),
    /// The number is below the session's window.
    Expired,
    /// There is no such session.
    Ended,
    /// The root group must be asked.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Session {
    highest: u64,
    /// Numbers up to this one are known only if they are in `batches` or `clear`.
    unsure: u64,
    /// Numbers up to this one are below the window, whatever the highest number is.
    expired: u64,
    /// Numbers up to `unsure` that were asked for and are not committed.
    clear: BTreeSet<u64>,
    batches: BTreeMap<u64, Done>,
}

/// The known sessions, by id.
#[derive(Clone, Debug)]
pub struct Sessions {
    window: u64,
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions that do not exist, by a recent answer of the root group.
    ended: BTreeSet<SessionId>,
}

impl Sessions {
    /// An empty set of sessions. Each will remember `window` numbers.
    #[must_use]
    pub fn new(window: u32) -> Self {
        assert!(window > 0, "the genesis header is checked");
        Self { window: u64::from(window), sessions: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// How many numbers a session remembers.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Adds a session whose batches will all be passed to `record`.
    pub fn open_whole(&mut self, id: SessionId, highest: u64) {
        let session = self.entry(id);
        session.highest = session.highest.max(highest);
    }

    /// Notes that a session exists, with nothing known of its numbers up to `highest`.
    ///
    /// If higher numbers were known, there are two possible reasons. The session ended and was
    /// opened again, or more was committed after the root group answered. In either case the
    /// numbers are forgotten and asked for again.
    pub fn open(&mut self, id: SessionId, highest: u64) {
        let known = self.sessions.get(&id).map(|session| session.highest.max(session.unsure));
        if known.is_none_or(|known| highest < known) {
            let unsure = known.unwrap_or(highest);
            *self.entry(id) = Session { highest, unsure, ..Session::default() };
        }
        self.ended.remove(&id);
    }

    /// Forgets a committed number, so that it is asked for again. Its session may have ended and
    /// been opened again since.
    pub fn doubt(&mut self, id: &SessionId, number: u64) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.batches.remove(&number).is_some()
        {
            session.unsure = session.unsure.max(number);
        }
    }

    /// Notes the root group's answer about one number.
    pub fn learn(&mut self, id: SessionId, number: u64, done: Option<Done>) {
        let session = self.entry(id);
        match done {
            Some(done) => {
                session.highest = session.highest.max(number);
                session.batches.insert(number, done);
            }
            None => {
                session.clear.insert(number);
            }
        }
    }

    /// Notes the root group's answer that a number is below the window.
    pub fn expire(&mut self, id: SessionId, number: u64) {
        let session = self.entry(id);
        session.expired = session.expired.max(number);
    }

    /// Whether anything is known of a session.
    #[must_use]
    pub fn knows(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    /// Notes that the root group does not know the session. This holds until `forget_ended`.
    pub fn end(&mut self, id: SessionId) {
        self.sessions.remove(&id);
        self.ended.insert(id);
    }

    /// Forgets which sessions have ended, since they may have been opened again.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// Notes a committed batch. Drops the numbers that fall out of the window.
    pub fn record(&mut self, id: SessionId, number: u64, done: Done) {
        let window = self.window;
        let session = self.entry(id);
        session.highest = session.highest.max(number);
        session.batches.insert(number, done);
        let oldest = session.highest.saturating_sub(window - 1);
        session.batches = session.batches.split_off(&oldest);
        session.clear = session.clear.split_off(&oldest);
    }

    /// Notes that a rollback undid every header after this one.
    pub fn roll_back(&mut self, target: Sequence) {
        for done in self.sessions.values_mut().flat_map(|session| session.batches.values_mut()) {
            done.rolled_back |= done.sequence > target;
        }
    }

    /// The state of one number of a session.
    #[must_use]
    pub fn standing(&self, id: &SessionId, number: u64) -> NumberStanding {
        if self.ended.contains(id) {
            return NumberStanding::Ended;
        }
        let Some(session) = self.sessions.get(id) else { return NumberStanding::Unknown };
        if let Some(done) = session.batches.get(&number) {
            NumberStanding::Done(*done)
        } else if number <= session.expired.max(session.highest.saturating_sub(self.window)) {
            NumberStanding::Expired
        } else if number <= session.unsure && !session.clear.contains(&number) {
            NumberStanding::Unknown
        } else {
            NumberStanding::New
        }
    }

    fn entry(&mut self, id: SessionId) -> &mut Session {
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&id) {
            self.sessions.pop_first();
        }
        self.sessions.entry(id).or_default()
    }
}
