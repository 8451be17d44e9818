//! What the leader knows of sessions: a part of what the root group knows, which has the last word.
//!
//! `TakeOver` tells the most recently used sessions whole; of others the leader learns by asking, number by number. It may
//! know a session that the root group has ended since: then the root group refuses the append, and the leader takes over
//! again.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::{Digest, Sequence, SessionId};

/// Most sessions that are remembered; what is dropped is asked for again.
const SESSIONS_MAX: usize = 4096;

/// One committed batch of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What was committed under the number.
    pub batch_hash: Digest,
    /// The header that committed it.
    pub sequence: Sequence,
    /// Its place in that header's journal.
    pub journal_index: u32,
    /// A rollback has undone it since.
    pub rolled_back: bool,
}

/// What a (session, number) is to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not committed yet.
    New,
    /// Committed.
    Done(Done),
    /// Too old to tell.
    Expired,
    /// No such session.
    Ended,
    /// The root group must be asked.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Session {
    highest: u64,
    /// Numbers up to this one are known only if they are in `batches` or `clear`.
    unsure: u64,
    /// Numbers up to this one are below the window, whatever the highest is.
    expired: u64,
    /// Numbers up to `unsure` that were asked for and not committed.
    clear: BTreeSet<u64>,
    batches: BTreeMap<u64, Done>,
}

/// The sessions that are known, by id.
#[derive(Clone, Debug)]
pub struct Sessions {
    window: u64,
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions that do not exist, as the root group said a moment ago.
    ended: BTreeSet<SessionId>,
}

impl Sessions {
    /// No sessions; each remembers this many numbers.
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

    /// A session whose batches will all be told by `record`.
    pub fn open_whole(&mut self, id: SessionId, highest: u64) {
        let session = self.entry(id);
        session.highest = session.highest.max(highest);
    }

    /// A session that exists, of whose numbers up to `highest` nothing is known.
    ///
    /// If more was known, either it ended and was opened anew, or more was committed since the root group said this: what was known is
    /// forgotten, and asked for again.
    pub fn open(&mut self, id: SessionId, highest: u64) {
        let known = self.sessions.get(&id).map(|session| session.highest.max(session.unsure));
        if known.is_none_or(|known| highest < known) {
            let unsure = known.unwrap_or(highest);
            *self.entry(id) = Session { highest, unsure, ..Session::default() };
        }
        self.ended.remove(&id);
    }

    /// A committed number is asked for again: its session may have ended and been opened anew since.
    pub fn doubt(&mut self, id: &SessionId, number: u64) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.batches.remove(&number).is_some()
        {
            session.unsure = session.unsure.max(number);
        }
    }

    /// What the root group says of one number.
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

    /// The root group says that a number is below the window.
    pub fn expire(&mut self, id: SessionId, number: u64) {
        let session = self.entry(id);
        session.expired = session.expired.max(number);
    }

    /// Whether anything is known of a session.
    #[must_use]
    pub fn knows(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    /// The root group does not know the session; holds until `forget_ended`.
    pub fn end(&mut self, id: SessionId) {
        self.sessions.remove(&id);
        self.ended.insert(id);
    }

    /// A session may have been opened since it was asked for.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// A batch was committed; what falls out of the window is dropped.
    pub fn record(&mut self, id: SessionId, number: u64, done: Done) {
        let window = self.window;
        let session = self.entry(id);
        session.highest = session.highest.max(number);
        session.batches.insert(number, done);
        let oldest = session.highest.saturating_sub(window - 1);
        session.batches = session.batches.split_off(&oldest);
        session.clear = session.clear.split_off(&oldest);
    }

    /// A rollback undid every header after this one.
    pub fn roll_back(&mut self, target: Sequence) {
        for done in self.sessions.values_mut().flat_map(|session| session.batches.values_mut()) {
            done.rolled_back |= done.sequence > target;
        }
    }

    /// What a number of a session is.
    #[must_use]
    pub fn standing(&self, id: &SessionId, number: u64) -> Standing {
        if self.ended.contains(id) {
            return Standing::Ended;
        }
        let Some(session) = self.sessions.get(id) else { return Standing::Unknown };
        if let Some(done) = session.batches.get(&number) {
            Standing::Done(*done)
        } else if number <= session.expired.max(session.highest.saturating_sub(self.window)) {
            Standing::Expired
        } else if number <= session.unsure && !session.clear.contains(&number) {
            Standing::Unknown
        } else {
            Standing::New
        }
    }

    fn entry(&mut self, id: SessionId) -> &mut Session {
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&id) {
            self.sessions.pop_first();
        }
        self.sessions.entry(id).or_default()
    }
}
