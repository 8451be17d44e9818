//! Sessions: records of which numbered batches were committed, so that none is applied twice.
//!
//! A session remembers the batches whose numbers lie in the window below its highest number.
//! Sessions end by count and by the time of headers, only while a command is executed, and in an
//! order that depends on commands alone. So all replicas end the same sessions. A session in use is
//! never ended to make room: opening another one is refused instead.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::{
    Digest, Sequence, SessionId,
    codec::{Error, Reader, Writer},
};

use crate::{
    codec::{len32, to_usize},
    types::{SessionBatch, SessionCommit},
};

/// Limit on the number of sessions that are open at once.
pub const SESSIONS_MAX: usize = 4096;
/// A session ends if no header used it for this long.
pub const SESSION_IDLE_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// A session used within this time is not ended to make room for another.
pub const SESSION_IDLE_MS_MIN: u64 = 60 * 1000;

/// One client's series of numbered batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    batches: BTreeMap<u64, Remembered>,
    highest_number: u64,
    window: u32,
    /// The later of the last header's time and the clock of the replica that opened it.
    used_ms: u64,
    /// Orders sessions by last use.
    used_tick: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Remembered {
    batch_hash: Digest,
    sequence: Sequence,
    journal_index: u32,
    rolled_back: bool,
}

/// The reason why a session's batch can't be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    Unknown,
    Expired,
    Repeated,
    Zero,
}

impl Session {
    /// The highest number committed; 0 if none was.
    #[must_use]
    pub fn highest_number(&self) -> u64 {
        self.highest_number
    }

    /// Whether a number is below the window, so that its outcome is forgotten.
    #[must_use]
    pub fn is_expired(&self, number: u64) -> bool {
        self.highest_number.saturating_sub(number) >= u64::from(self.window)
    }

    /// The batch of a number, if it was committed and is in the window.
    #[must_use]
    pub fn batch(&self, number: u64) -> Option<SessionBatch> {
        self.batches.get(&number).map(|batch| batch.named(number))
    }

    /// All batches in the window, by number.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = SessionBatch> + '_ {
        self.batches.iter().map(|(number, batch)| batch.named(*number))
    }

    fn commit(&mut self, commit: &SessionCommit, sequence: Sequence) {
        let batch = Remembered {
            batch_hash: commit.batch_hash,
            sequence,
            journal_index: commit.journal_index,
            rolled_back: false,
        };
        assert!(self.batches.insert(commit.number, batch).is_none(), "a number is committed once");
        self.highest_number = self.highest_number.max(commit.number);
        let oldest = self.highest_number.saturating_sub(u64::from(self.window)) + 1;
        self.batches = self.batches.split_off(&oldest);
        assert!(self.batches.len() <= to_usize(self.window), "what lies below the window is forgotten");
    }
}

impl Remembered {
    fn named(&self, number: u64) -> SessionBatch {
        SessionBatch {
            number,
            batch_hash: self.batch_hash,
            sequence: self.sequence,
            journal_index: self.journal_index,
            rolled_back: self.rolled_back,
        }
    }
}

/// All open sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    by_use: BTreeSet<(u64, SessionId)>,
    tick: u64,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    /// All sessions, most recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.by_use.iter().rev().map(|(_, id)| (*id, &self.by_id[id]))
    }

    /// Opens a session or finds it again; `None` if there is no room.
    pub(crate) fn open(&mut self, id: SessionId, now_ms: u64, window: u32) -> Option<&Session> {
        if !self.by_id.contains_key(&id) {
            if self.by_id.len() >= SESSIONS_MAX
                && let Some(&(_, oldest)) = self.by_use.first()
            {
                if now_ms.saturating_sub(self.by_id[&oldest].used_ms) < SESSION_IDLE_MS_MIN {
                    return None;
                }
                self.end(oldest);
            }
            assert!(self.by_id.len() < SESSIONS_MAX, "there is room for the session");
            self.by_id.insert(id, Session { window, ..Session::default() });
        }
        Some(self.touch(id, now_ms))
    }

    /// Checks the batches of one header, in order and against each other. A session that is idle
    /// for too long at the header's time counts as ended.
    pub(crate) fn check(&self, commits: &[SessionCommit], now_ms: u64) -> Result<(), (usize, Unfit)> {
        let mut seen = BTreeSet::new();
        for (at, commit) in commits.iter().enumerate() {
            let unfit = match self.by_id.get(&commit.session) {
                None => Some(Unfit::Unknown),
                Some(session) if session.has_ended(now_ms) => Some(Unfit::Unknown),
                Some(_) if commit.number == 0 => Some(Unfit::Zero),
                Some(session) if session.is_expired(commit.number) => Some(Unfit::Expired),
                Some(session) if session.batches.contains_key(&commit.number) => Some(Unfit::Repeated),
                Some(_) if !seen.insert((commit.session, commit.number)) => Some(Unfit::Repeated),
                Some(_) => None,
            };
            if let Some(unfit) = unfit {
                return Err((at, unfit));
            }
        }
        Ok(())
    }

    /// Ends the sessions that are idle for too long at the header's time. Then remembers the
    /// header's batches, which `check` has accepted.
    pub(crate) fn commit(&mut self, commits: &[SessionCommit], sequence: Sequence, now_ms: u64) {
        self.end_idle(now_ms);
        for commit in commits {
            self.touch(commit.session, now_ms).commit(commit, sequence);
        }
    }

    /// Ends the sessions that were idle for too long at this time.
    pub(crate) fn end_idle(&mut self, now_ms: u64) {
        let ended: Vec<_> =
            self.by_id.iter().filter(|(_, session)| session.has_ended(now_ms)).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.end(id));
    }

    /// Marks the batches of every header after `target` as rolled back.
    pub(crate) fn roll_back(&mut self, target: Sequence) {
        for batch in self.by_id.values_mut().flat_map(|session| session.batches.values_mut()) {
            batch.rolled_back |= batch.sequence > target;
        }
    }

    /// Marks an open session as used now.
    fn touch(&mut self, id: SessionId, now_ms: u64) -> &mut Session {
        self.tick += 1;
        let session = self.by_id.get_mut(&id).expect("only open sessions are used");
        assert!(session.used_tick < self.tick, "the tick is later than every use");
        self.by_use.remove(&(session.used_tick, id));
        session.used_ms = session.used_ms.max(now_ms);
        session.used_tick = self.tick;
        self.by_use.insert((self.tick, id));
        session
    }

    fn end(&mut self, id: SessionId) {
        if let Some(session) = self.by_id.remove(&id) {
            self.by_use.remove(&(session.used_tick, id));
        }
        assert_eq!(self.by_id.len(), self.by_use.len(), "every session has one place in the order of use");
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.tick);
        out.u32(len32(self.by_id.len()));
        for (id, session) in &self.by_id {
            out.raw(id.as_bytes());
            out.u64(session.highest_number);
            out.u32(session.window);
            out.u64(session.used_ms);
            out.u64(session.used_tick);
            out.u32(len32(session.batches.len()));
            for (number, batch) in &session.batches {
                out.u64(*number);
                out.digest(&batch.batch_hash);
                out.u64(batch.sequence.0);
                out.u32(batch.journal_index);
                out.flag(batch.rolled_back);
            }
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut sessions = Self { tick: input.u64()?, ..Self::default() };
        for _ in 0..input.u32()? {
            let id = SessionId(input.bytes16()?);
            let session = Session::decode(input)?;
            if sessions.by_id.len() >= SESSIONS_MAX || session.used_tick > sessions.tick {
                return Err(Error::Malformed("sessions"));
            }
            if !sessions.by_use.insert((session.used_tick, id)) || sessions.by_id.insert(id, session).is_some() {
                return Err(Error::Malformed("sessions"));
            }
        }
        Ok(sessions)
    }
}

impl Session {
    fn has_ended(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms) > SESSION_IDLE_MS_MAX
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut session = Self {
            batches: BTreeMap::new(),
            highest_number: input.u64()?,
            window: input.u32()?,
            used_ms: input.u64()?,
            used_tick: input.u64()?,
        };
        for _ in 0..input.u32()? {
            let number = input.u64()?;
            let batch = Remembered {
                batch_hash: input.digest()?,
                sequence: Sequence(input.u64()?),
                journal_index: input.u32()?,
                rolled_back: input.flag("rolled back")?,
            };
            if number > session.highest_number || session.is_expired(number) {
                return Err(Error::Malformed("number outside the window"));
            }
            session.batches.insert(number, batch);
        }
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 4;

    fn id(number: usize) -> SessionId {
        SessionId((number as u128).to_le_bytes())
    }

    fn commit(number: u64) -> SessionCommit {
        SessionCommit { session: id(1), number, batch_hash: Digest([number as u8; 32]), journal_index: 0 }
    }

    #[test]
    fn numbers_of_one_header_may_leave_each_others_window() {
        let mut sessions = Sessions::default();
        sessions.open(id(1), 0, WINDOW).expect("there is room");
        let commits = [commit(1), commit(100), commit(2)];
        assert_eq!(sessions.check(&commits, 0), Ok(()));
        sessions.commit(&commits, Sequence(1), 0);
        let session = sessions.get(id(1)).expect("it is open");
        assert_eq!(session.highest_number(), 100);
        assert_eq!(session.batches().map(|batch| batch.number).collect::<Vec<_>>(), [100]);
    }

    #[test]
    fn what_is_encoded_decodes_and_a_number_outside_the_window_does_not() {
        let mut sessions = Sessions::default();
        sessions.open(id(1), 0, WINDOW).expect("there is room");
        sessions.commit(&[commit(5), commit(6)], Sequence(1), 0);
        let bytes = |sessions: &Sessions| {
            let mut out = Writer::new();
            sessions.encode(&mut out);
            out.into_bytes()
        };
        assert_eq!(Sessions::decode(&mut Reader::new(&bytes(&sessions))), Ok(sessions.clone()));
        sessions.by_id.get_mut(&id(1)).expect("it is open").highest_number = 50;
        assert!(Sessions::decode(&mut Reader::new(&bytes(&sessions))).is_err());
    }

    #[test]
    fn a_full_table_ends_the_session_that_was_idle_for_longest() {
        let mut sessions = Sessions::default();
        for number in 0..SESSIONS_MAX {
            sessions.open(id(number), number as u64, WINDOW).expect("there is room");
        }
        assert_eq!(sessions.open(id(SESSIONS_MAX), SESSION_IDLE_MS_MIN - 1, WINDOW), None);
        assert!(sessions.open(id(SESSIONS_MAX), SESSION_IDLE_MS_MIN, WINDOW).is_some());
        assert!(sessions.get(id(0)).is_none() && sessions.get(id(1)).is_some());
    }
}
