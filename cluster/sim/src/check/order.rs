//! Judges linearizability. The log orders everything: a commit happens at its entry, and each
//! answer or refusal must fit the state after one entry.
//!
//! That entry must not be older than an entry that any client had learned of before the question.
//! It must not be newer than the entry of any call that began after the answer. Each answer gets
//! the oldest entry that fits, because that restricts the other answers least.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_types::{Reason, Stamp};

use super::{
    commits::Placed,
    conditions::{Records, holds, stamp},
    ledger::{Event, Ledger},
};
use crate::history::{Finding, History, Look, Moment, Outcome, Seen};

/// A commit or an answer, to be placed in the log.
struct Act<'a> {
    begin: Moment,
    end: Moment,
    /// Entry of the log, if it is known.
    fixed: Option<usize>,
    look: Option<&'a Look>,
}

/// Finds a place for every answer.
pub fn check(history: &History, ledger: &Ledger, placed: &Placed) -> Result<(), Finding> {
    let mut acts = commits(history, placed);
    for look in &history.looks {
        let fixed = match &look.seen {
            Seen::Admin { header } => Some(find(ledger, header)?),
            Seen::Failed(id) if history.staged.contains_key(id) => continue,
            _ => None,
        };
        acts.push(Act { begin: look.begin, end: look.end, fixed, look: Some(look) });
    }
    let uppers = uppers(&acts, ledger.events.len() - 1);
    acts.sort_by_key(|act| act.begin);
    // The newest entry of the acts that ended at each moment. `heard` is the newest entry of all
    // acts that ended before the current one began.
    let mut ended: BTreeMap<Moment, usize> = BTreeMap::new();
    let mut heard: (Moment, usize) = (0, 0);
    for act in &acts {
        while let Some(first) = ended.first_entry().filter(|first| *first.key() < act.begin) {
            heard = (*first.key(), heard.1.max(first.remove()));
        }
        let stale = act.look.is_some_and(|look| look.stale_ok);
        let lower = if stale { 0 } else { heard.1 };
        let upper = uppers.range(act.end..).next().map_or(ledger.events.len() - 1, |(_, upper)| *upper);
        let place = match act.fixed {
            Some(fixed) => (lower..=fixed).next_back().filter(|place| *place == fixed),
            None => {
                let look = act.look.expect("what is not fixed was looked at");
                (lower..=upper).find(|place| fits(look, &ledger.events[*place], history, ledger))
            }
        };
        let Some(place) = place else { return Err(misfit(act, lower, upper, ledger)) };
        if !stale {
            let newest = ended.entry(act.end).or_insert(place);
            *newest = place.max(*newest);
        }
    }
    Ok(())
}

fn commits(history: &History, placed: &Placed) -> Vec<Act<'static>> {
    let mut acts = Vec::new();
    for (id, batch) in &history.batches {
        let ends = batch.attempts.iter().flatten().filter_map(|attempt| match attempt {
            Outcome::Committed(committed) => Some(committed.end),
            _ => None,
        });
        if let (Some(end), Some((sequence, _))) = (ends.min(), placed.get(id)) {
            acts.push(Act { begin: batch.begin, end, fixed: Some(*sequence), look: None });
        }
    }
    acts
}

/// For each moment at which an act began, the oldest entry of the acts that began then or later. An
/// act that ended before that moment can't have a newer entry.
fn uppers(acts: &[Act<'_>], last: usize) -> BTreeMap<Moment, usize> {
    let mut by_begin: Vec<_> = acts.iter().filter_map(|act| Some((act.begin, act.fixed?))).collect();
    by_begin.sort_unstable();
    let mut least = last;
    let mut uppers = BTreeMap::new();
    for (begin, fixed) in by_begin.into_iter().rev() {
        least = least.min(fixed);
        uppers.insert(begin, least);
    }
    uppers
}

fn find(ledger: &Ledger, header: &Bytes) -> Result<usize, Finding> {
    let found = ledger.events.iter().position(|event| event.bytes[..] == header[..]);
    found.ok_or_else(|| "log: an acknowledged prune or rollback is not in it".to_owned())
}

fn misfit(act: &Act<'_>, lower: usize, upper: usize, ledger: &Ledger) -> Finding {
    let name = |at: usize| ledger.events.get(at).map(|event| event.header.stamp);
    match (act.fixed, act.look) {
        (Some(fixed), _) => {
            format!("order: entry {fixed} was asked for when entry {lower} was known already")
        }
        (None, look) => {
            let seen = look.map(|look| &look.seen);
            let what = format!("{seen:?}");
            let what: String = what.chars().take(600).collect();
            let kind = if matches!(seen, Some(Seen::Records { .. })) { "reads" } else { "order" };
            format!("{kind}: no state between {lower} ({:?}) and {upper} ({:?}) shows {what}", name(lower), name(upper))
        }
    }
}

/// Whether the state after this entry shows the answer.
fn fits(look: &Look, event: &Event, history: &History, ledger: &Ledger) -> bool {
    match &look.seen {
        Seen::Records { asked, at, records, range } => {
            let named = match asked {
                None => event.head == *at,
                Some(asked) => resolve(*asked, event) == Ok(*at),
            };
            named && ledger.states.get(at).is_some_and(|state| shows(state, records, range.as_ref()))
        }
        Seen::Head { stamp, log_size, boundary } => {
            event.header.stamp == *stamp && event.header.sequence.0 + 1 == *log_size && event.boundary.0 == *boundary
        }
        Seen::Refused { asked, reason } => resolve(*asked, event) == Err(*reason),
        Seen::Failed(id) => {
            let batch = &history.batches[id].batch;
            let state = &ledger.states[&event.head];
            let moved = batch.expected_head.is_some_and(|expected| stamp(expected) != event.header.stamp);
            let fails = batch.preconditions.iter().any(|precondition| {
                // Batches of one version are judged one after the other.
                let written = || event.batches.iter().any(|(_, id)| writes(history, *id, &precondition.key));
                !holds(precondition, state) || written()
            });
            moved || fails
        }
        Seen::Admin { .. } => true,
    }
}

fn writes(history: &History, id: u64, key: &Bytes) -> bool {
    history.batches[&id].batch.operations.iter().any(|operation| operation.key == *key)
}

fn shows(state: &Records, records: &[(Bytes, Option<(Bytes, Stamp)>)], range: Option<&(Bytes, Option<Bytes>)>) -> bool {
    let right = records.iter().all(|(key, record)| state.get(key) == record.as_ref());
    let whole = range.is_none_or(|(low, high)| {
        let inside = state.keys().filter(|key| *key >= low && high.as_ref().is_none_or(|high| *key < high));
        inside.eq(records.iter().map(|(key, _)| key))
    });
    right && whole
}

/// The original stamp of a state after an entry, or why it can't be read.
fn resolve(asked: Stamp, event: &Event) -> Result<Stamp, Reason> {
    let head = event.header.stamp;
    if asked.epoch > head.epoch || (asked.epoch == head.epoch && asked.version > head.version) {
        return Err(Reason::NotYet);
    }
    let stands = asked.version <= head.version && event.epochs.stamp_of(asked.version) == asked;
    let pairs = event.epochs.pairs();
    let renamed = pairs.iter().any(|pair| pair.epoch == asked.epoch && pair.base == asked.version);
    if !stands && !renamed {
        return Err(Reason::RolledBack);
    }
    if asked.version < event.boundary { Err(Reason::Pruned) } else { Ok(event.epochs.stamp_of(asked.version)) }
}
