//! The calls of a [`Client`] that the cache makes.

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_types::{ErrorKind, ShardId, Stamp};
use coppice_verify::{
    check::{self, Claim, Question, Subject},
    header::Header,
};
use tonic::Request;

use super::{
    error::{Error, Evidence},
    ledger::{Got, Grown, Head, Headed, Heads, Journal, Ledger, Shows},
};
use crate::{
    Client,
    call::{Repeat, call},
    routes::Pick,
    rules,
    stream::Stream,
    trust::{Seen, decoded},
};

/// Bound on the memory for one version of the stream: far more than the batches of a version have.
const VERSION_BYTES_MAX: usize = 1 << 30;
/// Memory that each part of a version takes besides its bytes.
const PART_BYTES: usize = 64;

const NO_KEY: Error = Error::Options("a proof needs a client that trusts a key");

fn malformed(what: &'static str) -> Error {
    crate::Error::Malformed(what).into()
}

#[tonic::async_trait]
impl Ledger for Client {
    async fn head(&self) -> Result<Head, Error> {
        let v1::HeadResponse { stamp, log_size, pruned_boundary: boundary, .. } = self.head().await?;
        let stamp = convert::from_stamp(stamp.ok_or_else(|| malformed("a head without a version"))?);
        Ok(Head { stamp, log_size, boundary })
    }

    async fn grown(&self, known: Option<&Grown>) -> Result<Grown, Error> {
        let trust = self.trust.as_ref().ok_or(NO_KEY)?;
        let keys = trust.keys();
        // The growth from genesis on names all key changes.
        let old_size = known.map_or(1, |known| known.size);
        let proof = self.checkpoint(old_size).await?.standing;
        let file = decoded(&proof)?;
        let question = Question::about(Subject::Growth(old_size));
        let verified = check::verify_known(&file, &keys, None, &question).map_err(crate::Error::from)?;
        let Claim::Standing(claim) = &verified.claim else { return Err(malformed("a proof of another kind")) };
        if let Some(known) = known.filter(|known| known.root != claim.old_root) {
            let why = format!("the log had another root at {} entries", known.size);
            return Err(Evidence { why, known: known.proof.clone(), shown: proof }.into());
        }
        let (size, root, newest) = (verified.checkpoint.size, verified.checkpoint.root, verified.newest.hash());
        let seen = Seen { checkpoint: verified.checkpoint, keys: verified.keys };
        if let Err(error) = self.follow(trust, seen).await {
            let error = Error::from(error);
            if !error.is_untrusted() {
                return Err(error);
            }
            let known = known.map(|known| known.proof.clone()).unwrap_or_default();
            return Err(Evidence { why: error.to_string(), known, shown: proof }.into());
        }
        Ok(Grown { size, root, newest, proof })
    }

    async fn batch_get(&self, keys: &[Bytes], at: Stamp, proven: bool) -> Result<Got, Error> {
        let read = v1::ReadOptions { at: Some(convert::to_stamp(at)), ..v1::ReadOptions::default() };
        let request = v1::BatchGetRequest { keys: keys.to_vec(), read: Some(read) };
        let mut client = self.clone();
        match (proven, &client.trust) {
            (true, None) => return Err(NO_KEY),
            (true, Some(_)) => {}
            // A client without a key asks for no proof.
            (false, _) => client.trust = None,
        }
        let v1::BatchGetResponse { records, proof, .. } = client.batch_get(request).await?;
        if records.len() != keys.len() {
            return Err(malformed("the answer has different keys than the question"));
        }
        let record = |record: v1::Record| match record.last_changed {
            _ if !record.found => Ok(None),
            None => Err(malformed("a record without a version")),
            Some(changed) => Ok(Some((record.value, convert::from_stamp(changed)))),
        };
        Ok(Got { records: records.into_iter().map(record).collect::<Result<_, _>>()?, proof })
    }

    async fn watch(&self, from: u64, shows: Shows) -> Result<Box<dyn Heads>, Error> {
        let request = v1::WatchHeadsRequest {
            from_sequence: from,
            follow: true,
            want_changed_keys: shows.keys,
            want_changed_values: shows.values,
            want_journal: shows.journal,
        };
        let mut picked = None;
        let stream = call("watch_heads", &self.routes, self.patience, Repeat::Safe, |pick, limit| {
            picked = Some(pick.clone());
            let (mut ledger, mut request) = (pick.ledger, Request::new(request));
            request.set_timeout(limit);
            async move { ledger.watch_heads(request).await }
        });
        let stream = stream.await?;
        let stream = Stream::new(stream, rules::heads(&request), self.patience.attempt).without_limit();
        Ok(Box::new(Watching { client: self.clone(), picked, stream, joiner: Joiner::default() }))
    }
}

/// A stream of a client.
struct Watching {
    client: Client,
    /// The coordinator that serves the stream.
    picked: Option<Pick>,
    stream: Stream<v1::WatchHeadsResponse>,
    joiner: Joiner,
}

#[tonic::async_trait]
impl Heads for Watching {
    async fn next(&mut self) -> Result<Option<Headed>, Error> {
        loop {
            let message = match self.stream.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                Err(error) => {
                    // A coordinator that does not lead says so within the stream. The next stream
                    // is another one's.
                    if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced) {
                        self.picked.iter().for_each(|pick| self.client.routes.failed(pick));
                    }
                    return Err(error.into());
                }
            };
            if let Some(whole) = self.joiner.take(message).map_err(malformed)? {
                return Ok(Some(whole));
            }
        }
    }
}

/// Joins the messages of a stream to headers, whose order [`rules::heads`] has checked.
#[derive(Debug, Default)]
struct Joiner {
    before: Option<Header>,
    part: Option<Headed>,
    /// Memory for the changes and the journal of the part.
    size: usize,
}

impl Joiner {
    /// Returns a header when its last message has come.
    fn take(&mut self, message: v1::WatchHeadsResponse) -> Result<Option<Headed>, &'static str> {
        let mut part = match self.part.take() {
            Some(part) if part.encoded != message.header => return Err("a header in the middle of another"),
            Some(part) => part,
            None => self.begin(&message.header)?,
        };
        if let Some(journal) = message.journal {
            self.take_journal(&mut part, journal)?;
        }
        self.grow(message.changes.iter().map(|record| record.key.len() + record.value.len()))?;
        part.changes.extend(message.changes);
        (part.rolled_back, part.lists_gone) = (message.rolled_back, message.lists_gone);
        if message.rolled_back {
            (part.journal, part.changes) = (None, Vec::new());
        }
        if message.continued {
            self.part = Some(part);
            return Ok(None);
        }
        self.before = Some(part.header.clone());
        Ok(Some(part))
    }

    fn begin(&mut self, encoded: &Bytes) -> Result<Headed, &'static str> {
        let header = Header::decode(encoded).map_err(|_| "a header that can't be read")?;
        if let Some(before) = &self.before {
            header.check_follows(before).map_err(|rule| rule.0)?;
        }
        self.size = 0;
        // A slice would keep the whole message in memory.
        let encoded = Bytes::copy_from_slice(encoded);
        Ok(Headed { header, encoded, changes: Vec::new(), rolled_back: false, journal: None, lists_gone: false })
    }

    /// Takes a part of a journal: all entries, or the operation lists of the next shard.
    fn take_journal(&mut self, part: &mut Headed, journal: v1::WatchedJournal) -> Result<(), &'static str> {
        let v1::WatchedJournal { entries, shard, lists } = journal;
        self.grow(entries.iter().chain(&lists).map(Bytes::len))?;
        if !part.changes.is_empty() {
            return Err("a journal behind the changes");
        }
        let Some(known) = &mut part.journal else {
            if entries.is_empty() || !lists.is_empty() {
                return Err("a journal that does not begin with its entries");
            }
            part.journal = Some(Journal { entries, ..Journal::default() });
            return Ok(());
        };
        let last = known.lists.last_key_value().map(|(last, _)| *last);
        if !entries.is_empty() || lists.is_empty() || last.is_some_and(|last| ShardId(shard) <= last) {
            return Err("the operation lists of shards out of order");
        }
        known.lists.insert(ShardId(shard), lists);
        Ok(())
    }

    fn grow(&mut self, parts: impl Iterator<Item = usize>) -> Result<(), &'static str> {
        self.size = parts.fold(self.size, |size, part| size.saturating_add(PART_BYTES + part));
        if self.size > VERSION_BYTES_MAX { Err("a version with more than any that a ledger commits") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
