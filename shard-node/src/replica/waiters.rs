//! Callers that wait for the outcome of an entry, or for a read index.

use std::{collections::BTreeMap, time::Duration};

use coppice_consensus::{Position, ReadId};
use coppice_types::Reason;
use opentelemetry::Context;

use super::{
    agreement::{Agreements, Verdict, Voters},
    input::Answer,
    trace::Way,
};
use crate::{
    limits::{PARKED_MAX, WAITERS_MAX},
    refusal::Refusal,
};

/// A reply that waits for a majority to agree on the outcome.
#[derive(Debug)]
struct Awaiting<R> {
    reply: R,
    answer: Answer<R>,
}

/// The proposer of an entry.
#[derive(Debug)]
enum Proposer<R> {
    Command(Answer<R>, Way),
    Change(Answer<()>),
}

/// Waiters for entries, by index.
#[derive(Debug)]
pub struct Waiters<R> {
    proposed: BTreeMap<u64, (u64, Proposer<R>)>,
    awaiting: BTreeMap<u64, Awaiting<R>>,
}

fn lost() -> Refusal {
    Refusal::new(Reason::Unavailable, "leadership changed, the outcome is unknown: ask again")
}

impl<R> Waiters<R> {
    /// An empty set of waiters.
    #[must_use]
    pub fn new() -> Self {
        Self { proposed: BTreeMap::new(), awaiting: BTreeMap::new() }
    }

    /// Whether one more caller may wait. Callers that gave up are removed first.
    pub fn has_room(&mut self) -> bool {
        if self.proposed.len() + self.awaiting.len() < WAITERS_MAX {
            return true;
        }
        self.sweep();
        self.proposed.len() + self.awaiting.len() < WAITERS_MAX
    }

    /// Whether no caller waits.
    pub fn is_empty(&self) -> bool {
        self.proposed.is_empty() && self.awaiting.is_empty()
    }

    /// Forgets callers that gave up.
    pub fn sweep(&mut self) {
        self.proposed.retain(|_, (_, proposer)| match proposer {
            Proposer::Command(answer, _) => !answer.is_closed(),
            Proposer::Change(answer) => !answer.is_closed(),
        });
        self.awaiting.retain(|_, awaiting| !awaiting.answer.is_closed());
    }

    /// Adds a caller that proposed the command at a position.
    pub fn command(&mut self, position: Position, answer: Answer<R>, way: Way) {
        self.put(position, Proposer::Command(answer, way));
    }

    /// The span of applying the command at a position, which begins now; empty if the command is
    /// not traced here.
    #[must_use]
    pub fn applying(&self, position: Position) -> Context {
        match self.proposed.get(&position.index) {
            Some((term, Proposer::Command(_, way))) if *term == position.term => way.apply(),
            _ => Context::default(),
        }
    }

    /// Adds a caller that proposed the change of members at a position.
    pub fn change(&mut self, position: Position, answer: Answer<()>) {
        self.put(position, Proposer::Change(answer));
    }

    fn put(&mut self, position: Position, proposer: Proposer<R>) {
        if let Some((_, old)) = self.proposed.insert(position.index, (position.term, proposer)) {
            old.refuse(lost());
        }
    }

    fn take(&mut self, position: Position) -> Option<Proposer<R>> {
        let (term, proposer) = self.proposed.remove(&position.index)?;
        if term == position.term {
            return Some(proposer);
        }
        proposer.refuse(lost());
        None
    }

    /// Notes that the command at a position was applied. Its proposer is answered once a majority
    /// agrees.
    pub fn applied(&mut self, position: Position, reply: R) {
        match self.take(position) {
            Some(Proposer::Command(answer, _)) => {
                self.awaiting.insert(position.index, Awaiting { reply, answer });
            }
            Some(other) => other.refuse(lost()),
            None => {}
        }
    }

    /// Answers the proposer of the change of members at a position, which has taken effect.
    pub fn changed(&mut self, position: Position) {
        match self.take(position) {
            // A caller that has gone needs no answer.
            Some(Proposer::Change(answer)) => drop(answer.send(Ok(()))),
            Some(other) => other.refuse(lost()),
            None => {}
        }
    }

    /// Refuses the proposer at a position where an empty entry was committed: the proposal was not
    /// carried out.
    pub fn empty(&mut self, position: Position) {
        let pending = Refusal::new(Reason::Unavailable, "another change of members is in progress");
        match self.take(position) {
            Some(change @ Proposer::Change(_)) => change.refuse(pending),
            Some(other) => other.refuse(lost()),
            None => {}
        }
    }

    /// Answers callers whose outcome a majority agrees on. `complete` adds facts to a reply that
    /// were not known before.
    pub fn settle(&mut self, agreements: &mut Agreements, voters: &Voters, mut complete: impl FnMut(&mut R)) {
        let mut agreed = |index: &u64| agreements.verdict(*index, voters) == Verdict::Agreed;
        let settled: Vec<u64> = self.awaiting.keys().copied().filter(|index| agreed(index)).collect();
        for Awaiting { mut reply, answer } in settled.iter().filter_map(|index| self.awaiting.remove(index)) {
            complete(&mut reply);
            // A caller that has gone needs no answer.
            drop(answer.send(Ok(reply)));
        }
    }

    /// Refuses all waiters: this replica will not learn their outcomes.
    pub fn fail_all(&mut self, refusal: &Refusal) {
        for (_, (_, proposer)) in std::mem::take(&mut self.proposed) {
            proposer.refuse(refusal.clone());
        }
        for (_, awaiting) in std::mem::take(&mut self.awaiting) {
            drop(awaiting.answer.send(Err(refusal.clone())));
        }
    }
}

impl<R> Proposer<R> {
    fn refuse(self, refusal: Refusal) {
        // A caller that has gone needs no answer.
        match self {
            Self::Command(answer, _) => drop(answer.send(Err(refusal))),
            Self::Change(answer) => drop(answer.send(Err(refusal))),
        }
    }
}

/// Reads that wait for an index. One ReadIndex serves all reads that were queued before it was
/// sent.
#[derive(Debug, Default)]
pub struct Reads {
    queued: Vec<Answer<u64>>,
    sent: Vec<(ReadId, Duration, Vec<Answer<u64>>)>,
}

impl Reads {
    /// Queues a read that wants an index.
    pub fn queue(&mut self, answer: Answer<u64>) {
        let waiting = self.queued.len() + self.sent.iter().map(|(_, _, answers)| answers.len()).sum::<usize>();
        if waiting >= PARKED_MAX {
            drop(answer.send(Err(Refusal::new(Reason::ResourceExhausted, "too many reads wait for an index"))));
        } else {
            self.queued.push(answer);
        }
    }

    /// Whether no read waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.sent.is_empty()
    }

    /// Whether a read waits for a ReadIndex to be sent.
    #[must_use]
    pub fn wants_index(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Notes that a ReadIndex was sent for all queued reads.
    pub fn sent(&mut self, id: ReadId, now: Duration) {
        let answers = std::mem::take(&mut self.queued);
        self.sent.push((id, now, answers));
    }

    /// Answers the reads of a ReadIndex that came back.
    pub fn ready(&mut self, id: ReadId, index: u64) {
        for (_, _, answers) in self.sent.extract_if(.., |(sent, _, _)| *sent == id) {
            // A caller that has gone needs no answer.
            answers.into_iter().for_each(|answer| drop(answer.send(Ok(index))));
        }
    }

    /// Queues the reads of each ReadIndex that was sent before `limit` again, since without a
    /// leader a ReadIndex is lost silently.
    pub fn retry(&mut self, limit: Duration) {
        for (_, _, answers) in self.sent.extract_if(.., |(_, at, _)| *at < limit) {
            self.queued.extend(answers.into_iter().filter(|answer| !answer.is_closed()));
        }
        self.queued.retain(|answer| !answer.is_closed());
    }
}

#[cfg(test)]
mod tests;
