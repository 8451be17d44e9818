//! The state of a trusted version, with which an audit begins.
//!
//! The state is read in proven ranges without values. Their proofs show all trees of every shard,
//! and the trees must give the state root in the header of that version. So only the header is
//! trusted.

use std::collections::BTreeMap;

use coppice_proto::{convert, v1};
use coppice_types::{Reason, ShardId, Version};
use coppice_verify::{
    check::{self, Answer, Claim, QueryClaim},
    keys::Keys,
    proof::{Proof, ProofFile, QueryProof},
    replay::Gathered,
};

use super::{
    book::{Founding, Line},
    finding::{RESUMES_MAX, may_resume},
    state::State,
};
use crate::{Client, Error};

/// Most records of one range; fewer are read where their proof is large.
const RECORDS_MAX: u32 = 512;

/// Reads the state at the version of a line.
pub async fn fetch(client: &Client, founding: &Founding, line: &Line, keys: &Keys) -> Result<State, Error> {
    let at = line.stamp.version;
    let mut reader = StateReader { client, line, keys, parts: BTreeMap::new() };
    let mut limit = RECORDS_MAX;
    let mut low = Some(Vec::new());
    let mut resumes = 0;
    while let Some(from) = &low {
        match reader.read(from, limit).await {
            Ok(next) => (low, resumes) = (next, 0),
            Err(error) if error.reason() == Some(Reason::LimitExceeded) && limit > 1 => limit /= 2,
            Err(error) if resumes < RESUMES_MAX && may_resume(&error) && error.reason() != Some(Reason::Pruned) => {
                resumes += 1;
            }
            Err(error) => return Err(told(error, at)),
        }
    }
    let mut forests = BTreeMap::new();
    for (shard, (version, gathered)) in reader.parts {
        let forest =
            gathered.forest(&founding.params).map_err(|_| Error::Malformed("proofs that leave something out"))?;
        forests.insert(shard, (version, forest));
    }
    let state = State::at(founding, forests).ok_or(Error::Malformed("proofs that leave a shard out"))?;
    match state.compare(line) {
        Ok(()) => Ok(state),
        Err(_) => Err(Error::Untrusted("the proven state is not the one whose root the header has")),
    }
}

/// Adds advice if the version can no longer be read.
fn told(error: Error, at: Version) -> Error {
    match error {
        Error::Refused { reason: Some(Reason::Pruned), kind, message, outcome_unknown } => {
            let message = format!(
                "the audit would begin with the state of version {at}, which is pruned: begin later, or at genesis, whose batches are kept ({message})"
            );
            Error::Refused { reason: Some(Reason::Pruned), kind, message, outcome_unknown }
        }
        error => error,
    }
}

struct StateReader<'a> {
    client: &'a Client,
    line: &'a Line,
    keys: &'a Keys,
    /// The version of each shard, and the parts of its trees that were read.
    parts: BTreeMap<ShardId, (Version, Gathered)>,
}

impl StateReader<'_> {
    /// Reads a range. Returns the low key of the next one; `None` at the end.
    async fn read(&mut self, low: &[u8], limit: u32) -> Result<Option<Vec<u8>>, Error> {
        let line = self.line;
        let at = Some(convert::to_stamp(line.stamp));
        let read = Some(v1::ReadOptions { at, want_proof: true, ..v1::ReadOptions::default() });
        let request =
            v1::RangeRequest { low: low.to_vec().into(), limit, read, without_values: true, ..Default::default() };
        let mut stream = self.client.range(request).await?;
        let mut shown = 0;
        let end = loop {
            let message = stream.next().await?.ok_or(Error::Malformed("the range breaks off"))?;
            shown += message.records.len();
            if let Some(end) = message.end {
                break end;
            }
            if message.records.is_empty() || shown > limit as usize {
                return Err(Error::Malformed("a range without an end"));
            }
        };
        let file = ProofFile::decode(&end.proof).map_err(|_| Error::Malformed("proof"))?;
        let verified = check::verify_known(&file, self.keys, None, &check::Question::default())?;
        if verified.header().is_none_or(|header| header.hash() != line.hash) {
            return Err(Error::Untrusted("versions were rolled back since the audit began: audit again"));
        }
        let next = next_low(&verified.claim, low, end.more)?;
        let Proof::Query(QueryProof { shards, .. }) = file.proof else { return Err(Error::Malformed("proof")) };
        for shard in &shards {
            let (_, gathered) = self.parts.entry(shard.shard).or_insert_with(|| (shard.version, Gathered::default()));
            gathered.take(&shard.trees).map_err(|_| Error::Malformed("proofs of one state that do not fit"))?;
        }
        Ok(next)
    }
}

/// The smallest key above the last record of a proven range; `None` at the end. Only records that
/// are proven take the audit further, so it ends.
fn next_low(claim: &Claim<'_>, low: &[u8], more: bool) -> Result<Option<Vec<u8>>, Error> {
    let Claim::Query(QueryClaim { answer: Answer::Range { low: proven, records, .. }, .. }) = claim else {
        return Err(Error::Untrusted("the proof is of another kind"));
    };
    if proven.as_ref() != low {
        return Err(Error::Untrusted("the proof is of another range"));
    }
    match records.last() {
        Some(last) if more => Ok(Some([&last.key[..], &[0]].concat())),
        None if more => Err(Error::Malformed("a range without records that goes on")),
        _ => Ok(None),
    }
}
