//! The places of headers in prefixes of the root log, as any replica of the root group proves them.

use std::borrow::Cow;

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::Digest;
use coppice_verify::{checkpoint::Checkpoint, hash, merkle, proof::HeaderPart};
use tonic::Status;

use super::{root_log::RootLog, wire};

/// The paths of a header's proof in one prefix of the log. They never change.
#[derive(Debug)]
pub struct Places {
    /// The path of the prefix's last header.
    pub newest: Vec<Digest>,
    /// The path of the header that is proven.
    pub own: Vec<Digest>,
    /// The headers of the key changes in the prefix, with their paths.
    pub key_changes: Vec<HeaderPart<'static>>,
}

impl Places {
    /// Asks any replica for the paths to the root of the prefix that ends in `end`. `newest` and
    /// `header` are the headers whose paths are asked for, the second with its sequence.
    ///
    /// # Errors
    /// `INTERNAL` if the paths do not lead to the root; `UNAVAILABLE` without a quorum of the root
    /// group.
    pub async fn find(
        log: &RootLog,
        end: &Checkpoint,
        (newest, header, sequence): (&Bytes, &Bytes, u64),
        changes: &[u64],
    ) -> Result<Self, Status> {
        let last = end.size - 1;
        let indices: Vec<u64> = [last, sequence].into_iter().chain(changes.iter().copied()).collect();
        let count = indices.len();
        let read = v1::LogProofRead { indices, size: end.size, old_size: 0 };
        let read = v1::read_root_request::Read::LogProof(read);
        let answer = log.root.read_settled(read, |answer| answer.inclusion.len() == count).await?;
        let mut paths = paths_in(&answer)?;
        let mut next = || paths.next().ok_or_else(|| wire::broken("log proof"));
        let (newest_path, own) = (next()?, next()?);
        let key_changes = key_changes(log, changes, paths).await?;
        let leads = |sequence: u64, header: &[u8], path: &[Digest]| {
            let entry = hash::log_entry_hash(header);
            merkle::verify_inclusion(sequence, end.size, &entry, path, &end.root).is_ok()
        };
        let sound = leads(last, newest, &newest_path)
            && leads(sequence, header, &own)
            && changes.iter().zip(&key_changes).all(|(at, part)| leads(*at, &part.header, &part.path));
        if sound { Ok(Self { newest: newest_path, own, key_changes }) } else { Err(wire::broken("log proof")) }
    }
}

/// The header at `sequence`, in canonical bytes.
///
/// # Errors
/// `UNAVAILABLE` without a quorum of the root group.
pub async fn read_header(log: &RootLog, sequence: u64) -> Result<Bytes, Status> {
    let read = v1::HeadersRead { from_sequence: sequence, limit: 1 };
    let answer = log.root.read(v1::read_root_request::Read::Headers(read)).await?;
    answer.headers.into_iter().next().ok_or_else(|| wire::broken("header"))
}

/// The inclusion paths in an answer.
///
/// # Errors
/// `INTERNAL` if one does not parse.
pub fn paths_in(answer: &v1::ReadRootResponse) -> Result<std::vec::IntoIter<Vec<Digest>>, Status> {
    Ok(answer.inclusion.iter().map(wire::path_in).collect::<Result<Vec<_>, _>>()?.into_iter())
}

/// The headers of the key changes with these sequences, each with its path.
///
/// # Errors
/// `INTERNAL` if there is another number of paths; `UNAVAILABLE` without a quorum.
pub async fn key_changes(
    log: &RootLog,
    changes: &[u64],
    paths: impl ExactSizeIterator<Item = Vec<Digest>>,
) -> Result<Vec<HeaderPart<'static>>, Status> {
    if paths.len() != changes.len() {
        return Err(wire::broken("log proof"));
    }
    let mut parts = Vec::with_capacity(changes.len());
    for (&sequence, path) in changes.iter().zip(paths) {
        let header = match log.keys.header(sequence) {
            Some(header) => header,
            None => {
                let header = read_header(log, sequence).await?;
                log.keys.keep_header(sequence, header.clone());
                header
            }
        };
        parts.push(HeaderPart { header: Cow::Owned(header.to_vec()), path });
    }
    Ok(parts)
}
