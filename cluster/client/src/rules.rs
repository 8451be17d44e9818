//! Rules for the messages of a stream. A server that repeats itself, goes back, or sends more than
//! was asked for is caught at the first such message.

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::Sequence;

/// Judges the next message of a stream.
pub(crate) type Rule<T> = Box<dyn FnMut(&T) -> Result<(), &'static str> + Send>;

/// Keys that ascend strictly, or descend, within bounds.
struct Ordered {
    low: Bytes,
    high: Option<Bytes>,
    reverse: bool,
    last: Option<Bytes>,
}

impl Ordered {
    fn new(low: Bytes, high: Option<Bytes>) -> Self {
        Self { low, high, reverse: false, last: None }
    }

    fn take(&mut self, key: &Bytes) -> Result<(), &'static str> {
        if *key < self.low || self.high.as_ref().is_some_and(|high| key >= high) {
            return Err("a key outside of what was asked for");
        }
        if self.last.as_ref().is_some_and(|last| if self.reverse { key >= last } else { key <= last }) {
            return Err("keys out of order");
        }
        // A copy, because a slice would keep the whole message in memory.
        self.last = Some(Bytes::copy_from_slice(key));
        Ok(())
    }
}

fn limit_of(limit: u32) -> u64 {
    if limit == 0 { u64::MAX } else { u64::from(limit) }
}

fn count_down(left: &mut u64) -> Result<(), &'static str> {
    *left = left.checked_sub(1).ok_or("more than was asked for")?;
    Ok(())
}

/// Records in the order that was asked for, at most as many, and then the end.
pub(crate) fn range(request: &v1::RangeRequest) -> Rule<v1::RangeResponse> {
    let bounds = Ordered::new(request.low.clone(), request.high.clone());
    let mut keys = Ordered { reverse: request.reverse, ..bounds };
    let mut left = limit_of(request.limit);
    let mut ended = false;
    Box::new(move |message| {
        if ended || message.records.is_empty() && message.end.is_none() {
            return Err("a range that neither goes on nor ends");
        }
        ended = message.end.is_some();
        message.records.iter().try_for_each(|record| {
            count_down(&mut left)?;
            if record.found { keys.take(&record.key) } else { Err("a range with a record that is not there") }
        })
    })
}

/// Changes from the newest back, at most as many as were asked for. The last message may say only
/// that older ones are gone.
pub(crate) fn history(request: &v1::HistoryRequest) -> Rule<v1::HistoryResponse> {
    let mut left = limit_of(request.limit);
    let mut last: Option<u64> = None;
    let mut ended = false;
    Box::new(move |message| {
        if ended || message.change.is_none() && !message.truncated {
            return Err("a history that neither goes on nor ends");
        }
        ended = message.truncated;
        let Some(change) = &message.change else { return Ok(()) };
        count_down(&mut left)?;
        let version = change.last_changed.as_ref().ok_or("a change without a version")?.version;
        if last.is_some_and(|last| version >= last) {
            return Err("changes that do not go back");
        }
        last = Some(version);
        Ok(())
    })
}

/// Differences in ascending order of their keys.
pub(crate) fn diff(request: &v1::DiffRequest) -> Rule<v1::DiffResponse> {
    let mut keys = Ordered::new(request.low.clone(), request.high.clone());
    Box::new(move |message| {
        if message.differences.is_empty() {
            return Err("a message without a difference");
        }
        message.differences.iter().try_for_each(|difference| {
            let before = difference.before.as_ref().ok_or("a difference without a before")?;
            let after = difference.after.as_ref().ok_or("a difference without an after")?;
            let key = if after.key.is_empty() { &before.key } else { &after.key };
            if !before.key.is_empty() && before.key != *key || !before.found && !after.found {
                return Err("a difference of two keys, or of none");
            }
            keys.take(key)
        })
    })
}

/// Headers with sequence numbers that rise by one. The changes of a header, in ascending order of
/// keys, may come in parts before its last message.
pub(crate) fn heads(request: &v1::WatchHeadsRequest) -> Rule<v1::WatchHeadsResponse> {
    let mut next = Some(Sequence(request.from_sequence));
    let everything = || Ordered::new(Bytes::new(), None);
    let mut keys = everything();
    Box::new(move |message| {
        let header = crate::header(&message.header).map_err(|_| "a header that can't be read")?;
        if Some(header.sequence) != next {
            return Err("headers that leave one out or repeat one");
        }
        if message.continued && message.changes.is_empty() && message.journal.is_none() {
            return Err("a part without content");
        }
        if message.journal.is_some() && !message.continued {
            return Err("a journal that nothing follows");
        }
        message.changes.iter().try_for_each(|record| keys.take(&record.key))?;
        if !message.continued {
            next = header.sequence.0.checked_add(1).map(Sequence);
            keys = everything();
        }
        Ok(())
    })
}

/// Ledgers in ascending order of their names, at most as many as were asked for.
pub(crate) fn ledgers(request: &v1::ListLedgersRequest) -> Rule<v1::ListLedgersResponse> {
    let mut last = request.after.clone();
    let mut left = limit_of(request.limit);
    Box::new(move |message| {
        count_down(&mut left)?;
        if message.name <= last {
            return Err("names that do not ascend");
        }
        last.clone_from(&message.name);
        Ok(())
    })
}

/// Members in ascending order of their ids, at most as many as were asked for.
pub(crate) fn members(request: &v1::ListMembersRequest) -> Rule<v1::ListMembersResponse> {
    let mut keys = Ordered::new(Bytes::new(), None);
    let mut left = limit_of(request.limit);
    Box::new(move |message| {
        count_down(&mut left)?;
        keys.take(&message.id)
    })
}

/// No rule: the auditor checks each message against its book.
pub(crate) fn journal(_: &v1::JournalRequest) -> Rule<v1::JournalResponse> {
    Box::new(|_| Ok(()))
}

/// No rule: the client checks each message against the queries.
pub(crate) fn queries() -> Rule<v1::QueryBatchResponse> {
    Box::new(|_| Ok(()))
}

#[cfg(test)]
mod tests {
    use coppice_types::{ClusterId, Params};
    use coppice_verify::{replay::Ledger, shard_map::ShardMap};

    use super::*;

    fn record(key: &str, version: u64) -> v1::Record {
        let last_changed = Some(v1::Stamp { epoch: 0, version });
        v1::Record { key: key.as_bytes().to_vec().into(), found: true, last_changed, ..Default::default() }
    }

    /// Passes messages to a rule until it refuses one.
    fn judged<T>(mut rule: Rule<T>, messages: &[T]) -> Result<(), &'static str> {
        messages.iter().try_for_each(&mut *rule)
    }

    #[test]
    fn a_range_ascends_within_its_bounds_and_ends_once() {
        let request = |limit| v1::RangeRequest {
            low: b"b".to_vec().into(),
            high: Some(b"e".to_vec().into()),
            limit,
            ..v1::RangeRequest::default()
        };
        let part =
            |keys: &[&str]| v1::RangeResponse { records: keys.iter().map(|key| record(key, 1)).collect(), end: None };
        let end = || v1::RangeResponse { records: Vec::new(), end: Some(v1::RangeEnd::default()) };
        assert_eq!(judged(range(&request(0)), &[part(&["b", "c"]), part(&["d"]), end()]), Ok(()));
        assert_eq!(judged(range(&request(2)), &[part(&["b", "c"]), end()]), Ok(()));
        for (limit, messages) in [
            (0, vec![part(&["b", "b"])]),
            (0, vec![part(&["c"]), part(&["b"])]),
            (0, vec![part(&["a"])]),
            (0, vec![part(&["e"])]),
            (1, vec![part(&["b"]), part(&["c"])]),
            (0, vec![part(&[])]),
            (0, vec![end(), end()]),
            (0, vec![v1::RangeResponse { records: vec![v1::Record { found: false, ..record("b", 1) }], end: None }]),
        ] {
            assert!(judged(range(&request(limit)), &messages).is_err(), "{messages:?}");
        }
    }

    #[test]
    fn a_history_goes_back_and_a_diff_ascends() {
        let change = |version| v1::HistoryResponse { change: Some(record("k", version)), truncated: false };
        let gone = v1::HistoryResponse { change: None, truncated: true };
        let request = |limit| v1::HistoryRequest { limit, ..Default::default() };
        assert_eq!(judged(history(&request(0)), &[change(7), change(3), gone.clone()]), Ok(()));
        assert!(judged(history(&request(0)), &[change(3), change(3)]).is_err());
        assert!(judged(history(&request(1)), &[change(3), change(2)]).is_err());
        assert!(judged(history(&request(0)), &[gone.clone(), gone]).is_err());
        assert!(judged(history(&request(0)), &[v1::HistoryResponse::default()]).is_err());
        let pair = |key: &str| v1::Difference {
            before: Some(v1::Record { found: false, ..record(key, 0) }),
            after: Some(record(key, 1)),
        };
        let part = |keys: &[&str]| v1::DiffResponse { differences: keys.iter().map(|key| pair(key)).collect() };
        let request = v1::DiffRequest::default();
        assert_eq!(judged(diff(&request), &[part(&["a", "b"]), part(&["c"])]), Ok(()));
        assert!(judged(diff(&request), &[part(&["a"]), part(&["a"])]).is_err());
        assert!(judged(diff(&request), &[part(&[])]).is_err());
        let other = v1::Difference { before: Some(record("a", 1)), after: Some(record("b", 1)) };
        assert!(judged(diff(&request), &[v1::DiffResponse { differences: vec![other] }]).is_err());
    }

    #[test]
    fn headers_come_one_after_the_other() {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
        (0..3).for_each(|_| ledger.append_unknown(9, Vec::new()));
        let head =
            |at: usize| v1::WatchHeadsResponse { header: ledger.headers[at].encode().into(), ..Default::default() };
        let part = |at: usize, key: &str| v1::WatchHeadsResponse {
            changes: vec![record(key, 1)],
            continued: true,
            ..head(at)
        };
        let request = |from_sequence| v1::WatchHeadsRequest { from_sequence, ..Default::default() };
        assert_eq!(judged(heads(&request(1)), &[head(1), head(2), head(3)]), Ok(()));
        assert_eq!(judged(heads(&request(1)), &[part(1, "a"), part(1, "b"), head(1), part(2, "a"), head(2)]), Ok(()));
        assert!(judged(heads(&request(0)), &[head(1)]).is_err());
        assert!(judged(heads(&request(1)), &[head(1), head(1)]).is_err());
        assert!(judged(heads(&request(1)), &[head(1), head(3)]).is_err());
        assert!(judged(heads(&request(1)), &[part(1, "a"), part(1, "a")]).is_err());
        assert!(judged(heads(&request(1)), &[v1::WatchHeadsResponse { continued: true, ..head(1) }]).is_err());
        assert!(judged(heads(&request(u64::MAX)), &[head(1)]).is_err());
    }
}
