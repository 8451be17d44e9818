//! Reads of a simulated client. Proofs are verified as they come.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_env::Rng;
use coppice_proto::{convert, status, v1};
use coppice_types::{Reason, Stamp};
use coppice_verify::check::{Answer, Claim, Record};

use super::{Client, Heard, stamp};
use crate::{
    history::{Look, Moment, Seen},
    shape, witnesses,
};

type Records = Vec<(Bytes, Option<(Bytes, Stamp)>)>;

fn records(records: Vec<v1::Record>) -> Records {
    let one = |record: v1::Record| {
        let found = record.found.then(|| (record.value, stamp(record.last_changed)));
        (record.key, found)
    };
    records.into_iter().map(one).collect()
}

impl Client {
    fn options(&mut self) -> v1::ReadOptions {
        let at = if self.rng.chance(350) { self.pick(&self.stamps.clone()) } else { None };
        let stale_ok = at.is_none() && self.rng.chance(150);
        let want_proof = self.rng.chance(300);
        v1::ReadOptions {
            at: at.map(convert::to_stamp),
            any_epoch: false,
            want_proof,
            stale_ok,
            ..v1::ReadOptions::default()
        }
    }

    pub(super) fn look(&mut self, begin: Moment, stale_ok: bool, seen: Seen) {
        let mut history = self.scribe.lock();
        let end = history.tick();
        history.done.1 += 1;
        history.looks.push(Look { client: self.id, begin, end, stale_ok, seen });
    }

    /// Records that a version could not be read, if that was the answer.
    fn refused(&mut self, begin: Moment, asked: Option<Stamp>, error: &tonic::Status) {
        let reason = status::reason(error);
        let (Some(asked), Some(reason @ (Reason::NotYet | Reason::Pruned | Reason::RolledBack))) = (asked, reason)
        else {
            return;
        };
        self.look(begin, false, Seen::Refused { asked, reason });
    }

    pub(super) async fn read_keys(&mut self) {
        let read = self.options();
        let (asked, stale_ok) = (read.at.map(|at| stamp(Some(at))), read.stale_ok);
        let count = 1 + self.rng.below(4);
        let mut keys: Vec<Bytes> = (0..count).map(|_| self.shape.key(&mut self.rng).into()).collect();
        keys.sort();
        keys.dedup();
        let begin = self.scribe.now();
        let request = v1::BatchGetRequest { keys, read: Some(read) };
        let answer: Heard<_> = if let Some(library) = &self.library {
            library.client().batch_get(request).await.map_err(|error| self.told_of_read(&error))
        } else {
            let mut ledger = self.ledger();
            self.hear(async move { ledger.batch_get(request).await.map(tonic::Response::into_inner) }).await
        };
        match answer {
            Ok(answer) => {
                let (at, records) = (stamp(answer.read_at), records(answer.records));
                self.check_proof(&answer.proof, at, &records, None);
                if asked.is_none() {
                    self.learn(at);
                    let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
                    self.seen.extend(records.iter().map(|(key, record)| (text(key), record.clone())));
                }
                self.look(begin, stale_ok, Seen::Records { asked, at, records, range: None });
            }
            Err(error) => self.refused(begin, asked, &error),
        }
    }

    pub(super) async fn read_range(&mut self) {
        let read = self.options();
        let (asked, stale_ok) = (read.at.map(|at| stamp(Some(at))), read.stale_ok);
        let low: Bytes = self.shape.key(&mut self.rng).into();
        let high: Option<Bytes> = self.rng.chance(600).then(|| self.shape.key(&mut self.rng).into());
        let high = high.filter(|high| *high > low);
        let begin = self.scribe.now();
        let request = v1::RangeRequest {
            low: low.clone(),
            high: high.clone(),
            limit: 0,
            read: Some(read),
            without_values: false,
            reverse: self.rng.chance(300),
        };
        let reverse = request.reverse;
        let mut ledger = self.ledger();
        let by_library = self.library.as_ref().map(|library| (library.client(), request.clone()));
        let call = async move {
            let mut stream = ledger.range(request).await?.into_inner();
            let mut found = Vec::new();
            while let Some(message) = stream.message().await? {
                found.extend(message.records);
                if let Some(end) = message.end {
                    return Ok((found, end));
                }
            }
            Err(tonic::Status::unavailable("the stream ended early"))
        };
        let answer: Heard<_> = match by_library {
            Some((client, request)) => client.range_all(request).await.map_err(|error| self.told_of_read(&error)),
            None => self.hear(call).await,
        };
        match answer {
            Ok((mut found, end)) => {
                if reverse {
                    found.reverse();
                }
                let (at, records) = (stamp(end.read_at), records(found));
                self.check_proof(&end.proof, at, &records, Some((&low, high.as_ref())));
                self.look(begin, stale_ok, Seen::Records { asked, at, records, range: Some((low, high)) });
            }
            Err(error) => self.refused(begin, asked, &error),
        }
    }

    /// Checks that a proof verifies, and proves exactly the answer.
    fn check_proof(&self, proof: &[u8], at: Stamp, found: &Records, range: Option<(&Bytes, Option<&Bytes>)>) {
        if proof.is_empty() {
            return;
        }
        let Some(verified) = self.verify(proof, "a read's proof") else { return };
        let Claim::Query(claim) = verified.claim else {
            return self.scribe.wrong("proofs: a read's proof proves something else".to_owned());
        };
        let shown = |record: &Record<'_>| (record.stamp, record.value_hash);
        let proven: BTreeMap<Vec<u8>, _> = match &claim.answer {
            Answer::Keys(keys) => keys.iter().map(|(key, record)| (key.to_vec(), record.as_ref().map(shown))).collect(),
            Answer::Range { records, .. } => {
                records.iter().map(|record| (record.key.to_vec(), Some(shown(record)))).collect()
            }
        };
        let hash = coppice_verify::hash::sha256;
        let answered: BTreeMap<Vec<u8>, _> = found
            .iter()
            .map(|(key, record)| (key.to_vec(), record.as_ref().map(|(value, stamp)| (*stamp, hash(value)))))
            .collect();
        let of_range = match (&claim.answer, range) {
            (Answer::Keys(_), None) => true,
            (Answer::Range { low, high, .. }, Some((asked_low, asked_high))) => {
                low.as_ref() == asked_low.as_ref() && high.as_deref() == asked_high.map(AsRef::as_ref)
            }
            _ => false,
        };
        if claim.header.stamp != at || proven != answered || !of_range {
            self.scribe.wrong(format!("proofs: a read at {at} is proven to be something else"));
        }
    }

    pub(super) async fn read_head(&mut self) -> bool {
        let stale_ok = self.rng.chance(100);
        let begin = self.scribe.now();
        let mut ledger = self.ledger();
        let answer = self
            .hear(async move { ledger.head(v1::HeadRequest { stale_ok }).await.map(tonic::Response::into_inner) })
            .await;
        let Ok(answer) = answer else { return false };
        self.note_checkpoint(&answer.checkpoint, "head's checkpoint");
        let stamp = stamp(answer.stamp);
        self.head = stamp;
        let v1::HeadResponse { log_size, pruned_boundary: boundary, .. } = answer;
        self.log_size = self.log_size.max(log_size);
        self.look(begin, stale_ok, Seen::Head { stamp, log_size, boundary });
        true
    }

    /// Asks for a cosigned checkpoint of at least `old_size` entries. Returns whether it got one. A
    /// checkpoint without enough valid cosignatures is a finding.
    pub(super) async fn read_cosigned(&mut self, old_size: u64) -> bool {
        let (mut ledger, request) = (self.ledger(), v1::GetCheckpointRequest { old_size, cosigned: true });
        let answer =
            self.hear(async move { ledger.get_checkpoint(request).await.map(tonic::Response::into_inner) }).await;
        let Ok(answer) = answer else { return false };
        self.note_checkpoint(&answer.checkpoint, "a cosigned checkpoint");
        let mut valid = 0;
        for key in witnesses::keys(&self.shape) {
            match key.cosigned(&answer.checkpoint) {
                Ok(cosigned) => valid += usize::from(cosigned.is_some()),
                Err(error) => self.scribe.wrong(format!("checkpoints: a cosignature does not verify: {error}")),
            }
        }
        if valid < shape::QUORUM {
            self.scribe.wrong(format!("checkpoints: one with {valid} cosignatures is shown as a cosigned one"));
        }
        true
    }

    /// Asks for a checkpoint that extends one seen before.
    pub(super) async fn look_at_log(&mut self) {
        let known: Vec<u64> = self.scribe.lock().checkpoints.keys().copied().collect();
        let old_size = self.pick(&known).unwrap_or(0);
        if self.rng.chance(300) && !self.shape.witnesses.is_empty() {
            self.read_cosigned(old_size).await;
            return;
        }
        let mut ledger = self.ledger();
        let request = v1::GetCheckpointRequest { old_size, ..v1::GetCheckpointRequest::default() };
        let answer =
            self.hear(async move { ledger.get_checkpoint(request).await.map(tonic::Response::into_inner) }).await;
        let Ok(answer) = answer else { return };
        self.note_checkpoint(&answer.checkpoint, "the newest checkpoint");
        if answer.standing.is_empty() {
            return;
        }
        let Some(verified) = self.verify(&answer.standing, "a proof of consistency") else { return };
        if let Claim::Standing(claim) = verified.claim {
            self.scribe.lock().checkpoint(claim.old_size, claim.old_root);
        }
    }
}
