//! Proofs of the time stamps around an entry of the root log (`docs/verification.md` section 19).
//!
//! Anchors are found by reading headers from the entry on, in both directions. How far is bounded:
//! an anchor that is farther away would give a wide interval.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use coppice_proto::{
    status,
    v1::{self, get_interval_request::Entry, read_root_request::Read},
};
use coppice_types::{Digest, Reason};
use coppice_verify::{
    anchor::Anchor,
    checkpoint::Checkpoint,
    header::{Body, Header},
    proof::{ANCHORS_MAX, HeaderPart, IntervalProof, LogPart, Proof},
};
use tokio::time::Instant;
use tonic::Status;

use super::proofs::{SignedPrefix, encode};
use crate::{
    groups::{
        places::{key_changes, paths_in},
        root_log::RootLog,
        wire,
    },
    plan::Refusal,
    shown::Shown,
};

/// Number of headers of one read.
const HEADERS_PER_READ: u64 = 256;
/// Limit on the number of headers that are read in one direction.
const HEADERS_MAX: u64 = 1 << 17;
/// How long a request waits for witnesses.
const COSIGN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the search may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// An anchor as it was found.
struct Found {
    header: Bytes,
    sequence: u64,
    stamped_size: u64,
}

impl Found {
    fn of(header: Bytes) -> Result<Option<Self>, Status> {
        let Header { sequence, body, .. } = wire::header_in(&header)?;
        match body {
            Body::Anchor(Anchor::Stamps(stamps)) => {
                Ok(Some(Self { header, sequence: sequence.0, stamped_size: stamps.size }))
            }
            _ => Ok(None),
        }
    }
}

/// Makes the proof file for an entry.
///
/// # Errors
/// `INVALID_ARGUMENT` for a request without an entry; `NOT_FOUND` for an entry that is not in the
/// log; `UNAVAILABLE` without a quorum of the root group, or in time of witnesses.
pub async fn interval(log: &RootLog, shown: &Shown, request: &v1::GetIntervalRequest) -> Result<Bytes, Status> {
    let count = usize::try_from(request.anchors.max(1)).unwrap_or(usize::MAX);
    if count > ANCHORS_MAX {
        return Err(Refusal::over_limit("anchors", ANCHORS_MAX as u64, count as u64).into());
    }
    let header = match request.entry {
        Some(Entry::Version(version)) => {
            let read = v1::VersionRead { version, epoch: None, header_only: true };
            log.root.read(Read::Version(read)).await?.header
        }
        Some(Entry::Sequence(sequence)) => {
            let read = v1::HeadersRead { from_sequence: sequence, limit: 1 };
            let headers = log.root.read(Read::Headers(read)).await?.headers;
            let missing = || status::refuse(Reason::NotFound, format!("the root log has no entry {sequence} yet"));
            headers.into_iter().next().ok_or_else(missing)?
        }
        None => return Err(Refusal::invalid("sequence or version is missing").into()),
    };
    let sequence = wire::header_in(&header)?.sequence.0;
    let view = log.view().await?;
    let newest_anchor = view.anchor;
    let prefix = if request.cosigned {
        let newest = newest_anchor.map_or(0, |anchor| anchor.sequence);
        let deadline = Instant::now() + COSIGN_TIMEOUT;
        SignedPrefix::cosigned(log, shown, sequence.max(newest) + 1, deadline).await?
    } else {
        SignedPrefix::newest(log, view).await?
    };
    let until = Instant::now() + SEARCH_TIMEOUT;
    // Without an anchor in the log there is nothing to search for.
    let (mut below, mut above) = (Vec::new(), Vec::new());
    if let Some(newest_anchor) = newest_anchor {
        below = search_below(log, sequence, count, until).await?;
        if newest_anchor.stamped_size > sequence {
            above = search_above(log, sequence, prefix.size(), count, until).await?;
        }
    }
    prove(log, &prefix, &header, sequence, (&below, &above)).await
}

/// Headers of the log, from a sequence on.
async fn headers(log: &RootLog, from_sequence: u64, limit: u64) -> Result<Vec<Bytes>, Status> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let read = Read::Headers(v1::HeadersRead { from_sequence, limit });
    Ok(log.root.read_settled(read, |answer| !answer.headers.is_empty()).await?.headers)
}

/// The nearest anchors before an entry, in the order of the log.
async fn search_below(log: &RootLog, sequence: u64, count: usize, until: Instant) -> Result<Vec<Found>, Status> {
    let (mut found, mut end) = (Vec::new(), sequence);
    let least = sequence.saturating_sub(HEADERS_MAX);
    while end > least && found.len() < count && Instant::now() < until {
        let mut start = end.saturating_sub(HEADERS_PER_READ).max(least);
        let mut block = Vec::new();
        // A read may give fewer headers than were asked for.
        let first = start;
        while start < end {
            let some = headers(log, start, end - start).await?;
            if some.is_empty() {
                return Err(wire::broken("list of headers"));
            }
            start += some.len() as u64;
            block.extend(some);
        }
        block.truncate(usize::try_from(end - first).unwrap_or(usize::MAX));
        for header in block.into_iter().rev() {
            found.extend(Found::of(header)?);
        }
        end = first;
    }
    found.truncate(count);
    found.reverse();
    Ok(found)
}

/// The nearest anchors that stamp an entry, in the order of the log.
async fn search_above(
    log: &RootLog,
    sequence: u64,
    size: u64,
    count: usize,
    until: Instant,
) -> Result<Vec<Found>, Status> {
    let (mut found, mut at) = (Vec::new(), sequence + 1);
    let most = size.min(at.saturating_add(HEADERS_MAX));
    while at < most && found.len() < count && Instant::now() < until {
        let some = headers(log, at, (most - at).min(HEADERS_PER_READ)).await?;
        if some.is_empty() {
            return Err(wire::broken("list of headers"));
        }
        at += some.len() as u64;
        for header in some {
            found.extend(Found::of(header)?.filter(|anchor| sequence < anchor.stamped_size && anchor.sequence < size));
        }
    }
    found.truncate(count);
    Ok(found)
}

/// Fetches the paths, and joins them to a file.
async fn prove(
    log: &RootLog,
    prefix: &SignedPrefix,
    header: &Bytes,
    sequence: u64,
    (below, above): (&[Found], &[Found]),
) -> Result<Bytes, Status> {
    let size = prefix.size();
    let changes = log.keys.changes_below(size);
    let anchors = below.iter().chain(above).map(|anchor| anchor.sequence);
    let indices: Vec<u64> = [size - 1, sequence].into_iter().chain(anchors).chain(changes.iter().copied()).collect();
    let answer = log.root.read(Read::LogProof(v1::LogProofRead { indices, size, old_size: 0 })).await?;
    let mut paths = paths_in(&answer)?;
    let mut next = || paths.next().ok_or_else(|| wire::broken("log proof"));
    let (newest_path, own_path) = (next()?, next()?);
    let mut part = |anchor: &Found| {
        let header = Cow::Owned(anchor.header.to_vec());
        Ok::<_, Status>(HeaderPart { header, path: next()? })
    };
    let below = below.iter().map(&mut part).collect::<Result<Vec<_>, Status>>()?;
    let above_parts = above.iter().map(&mut part).collect::<Result<Vec<_>, Status>>()?;
    let key_changes = key_changes(log, &changes, paths).await?;
    let mut stamped = Vec::new();
    for (anchor, part) in above.iter().zip(above_parts) {
        stamped.push((part, inclusion(log, sequence, anchor.stamped_size).await?));
    }
    let checkpoint = prefix.checkpoint();
    let end = Checkpoint::claimed(&checkpoint).map_err(|_| wire::broken("checkpoint"))?;
    debug_assert_eq!(end.size, size, "the checkpoint is over the prefix");
    let proof = IntervalProof {
        log: LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(prefix.newest_bytes().to_vec()),
            path: newest_path,
            key_changes,
        },
        header: HeaderPart { header: Cow::Owned(header.to_vec()), path: own_path },
        below,
        above: stamped,
    };
    encode(wire::header_in(header)?.cluster, Proof::Interval(proof))
}

/// The inclusion path of an entry in the first `size` entries.
async fn inclusion(log: &RootLog, sequence: u64, size: u64) -> Result<Vec<Digest>, Status> {
    let read = Read::LogProof(v1::LogProofRead { indices: vec![sequence], size, old_size: 0 });
    let answer = log.root.read(read).await?;
    paths_in(&answer)?.next().ok_or_else(|| wire::broken("log proof"))
}
