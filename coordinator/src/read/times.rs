//! The version of a time: found by the root group, and proven by two headers
//! (`docs/verification.md` section 13, *The version of a time*).
//!
//! A later version may have any time from that of the newest header on. So a read at a time is
//! answered only if the newest header is later than it: that answer stays the same, unless the
//! version is rolled back. No clock is asked.

use std::sync::Arc;

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{Reason, Stamp};
use coppice_verify::header::Header;
use tokio::time::Instant;
use tonic::Status;

use super::{
    proofs::{self, HeaderProof, SignedPrefix},
    reads::{Reads, moved},
};
use crate::{
    groups::wire::{self, View},
    plan::Refusal,
};

/// The newest version at a time, as the root group says.
#[derive(Debug)]
struct Found {
    /// The state of the root group in which that is so.
    view: Arc<View>,
    version: Told,
    /// The version after it; `None` if the version is head.
    next: Option<Told>,
}

/// A header with its canonical bytes.
#[derive(Debug)]
struct Told {
    header: Header,
    bytes: Bytes,
}

impl Told {
    fn read(bytes: Bytes) -> Result<Self, Status> {
        Ok(Self { header: wire::header_in(&bytes)?, bytes })
    }
}

impl Reads {
    /// The name of the newest version at a time, and a view of the root group in which it stands.
    ///
    /// # Errors
    /// `NOT_YET` if a later version may have the time, too; `NOT_FOUND` if the time is before
    /// genesis; `INVALID_ARGUMENT` if the read names a version as well; `UNAVAILABLE` without a
    /// quorum.
    pub(super) async fn at_time(&self, read: &v1::ReadOptions, time_ms: u64) -> Result<(Arc<View>, Stamp), Status> {
        if read.at.is_some() || read.any_epoch {
            return Err(Refusal::invalid("a read names a version or a time, not both").into());
        }
        let Found { view, version, .. } = self.find_time(time_ms).await?;
        let newest_ms = view.tail.header.timestamp_ms;
        if newest_ms <= time_ms {
            return Err(not_final(time_ms, newest_ms, version.header.stamp));
        }
        Ok((view, version.header.stamp))
    }

    /// The newest version at a time, if a header of this view is later. The answer is proven if
    /// there is a checkpoint over the view.
    ///
    /// # Errors
    /// `NOT_YET` if a later version may have the time, too; `NOT_FOUND` if the time is before
    /// genesis; `UNAVAILABLE` without a quorum, or if versions were rolled back since the view.
    pub(super) async fn time_in(
        &self,
        time_ms: u64,
        view: &Arc<View>,
        checkpoint: Option<&Bytes>,
    ) -> Result<v1::TimeResponse, Status> {
        let newest_ms = view.tail.header.timestamp_ms;
        if newest_ms <= time_ms {
            return Err(not_final(time_ms, newest_ms, view.head()));
        }
        if let Some(checkpoint) = checkpoint {
            let prefix = SignedPrefix::over(view.clone(), checkpoint.clone());
            return self.prove_time(time_ms, prefix).await.map_err(moved);
        }
        let Found { version, next, .. } = self.find_time(time_ms).await?;
        let stamp = version.header.stamp;
        if stamp.version > view.head().version || view.tail.epochs.stamp_of(stamp.version) != stamp {
            return Err(moved(status::refuse(Reason::RolledBack, "versions were rolled back")));
        }
        Ok(answer(time_ms, &version, next.as_ref(), newest_ms, Bytes::new()))
    }

    async fn find_time(&self, time_ms: u64) -> Result<Found, Status> {
        let read = v1::read_root_request::Read::Time(v1::TimeRead { time_ms });
        let answer = self.log.root.read(read).await?;
        let view = wire::view_in(answer.view)?;
        self.log.check_cluster(&view)?;
        let version = Told::read(answer.header)?;
        let next = Some(answer.next_header).filter(|next| !next.is_empty()).map(Told::read).transpose()?;
        let (at, head) = (&version.header, view.head().version);
        let ordered = match &next {
            Some(Told { header: next, .. }) => {
                next.stamp.version == at.stamp.version.next() && next.timestamp_ms > time_ms
            }
            None => at.stamp.version == head,
        };
        if !ordered || at.timestamp_ms > time_ms || view.tail.epochs.stamp_of(at.stamp.version) != at.stamp {
            return Err(wire::broken("version of a time"));
        }
        Ok(Found { view: Arc::new(view), version, next })
    }

    /// The newest version at a time, with the version after it.
    ///
    /// # Errors
    /// `NOT_FOUND` if the time is before genesis; `UNAVAILABLE` without a quorum, or if versions
    /// were rolled back meanwhile.
    pub async fn time(&self, request: v1::TimeRequest) -> Result<v1::TimeResponse, Status> {
        let v1::TimeRequest { time_ms, want_proof, cosigned } = request;
        let found = self.find_time(time_ms).await?;
        if !want_proof {
            let newest_ms = found.view.tail.header.timestamp_ms;
            return Ok(answer(time_ms, &found.version, found.next.as_ref(), newest_ms, Bytes::new()));
        }
        let prefix = if cosigned {
            let last = found.next.as_ref().unwrap_or(&found.version).header.sequence.0;
            let deadline = Instant::now() + self.read_timeout;
            SignedPrefix::cosigned(&self.log, &self.shown, last + 1, deadline).await?
        } else {
            SignedPrefix::newest(&self.log, found.view).await?
        };
        self.prove_time(time_ms, prefix).await.map_err(moved)
    }

    async fn prove_time(&self, time_ms: u64, prefix: SignedPrefix) -> Result<v1::TimeResponse, Status> {
        // Asked behind the prefix, so that the answer knows all versions in it.
        let Found { version, next, .. } = self.find_time(time_ms).await?;
        let (size, newest) = (prefix.size(), prefix.newest_header()?);
        let inside = |told: &Told| told.header.sequence.0 < size;
        let (version, next) = if inside(&version) {
            (version, next.filter(inside))
        } else {
            // All versions of the prefix are as old, so its head is the newest of them.
            let stamp = prefix.view().tail.epochs.stamp_of(newest.stamp.version);
            (Told::read(self.commit_header(prefix.view(), stamp).await?.1)?, None)
        };
        if next.is_none() && version.header.stamp.version != newest.stamp.version {
            return Err(status::refuse(Reason::RolledBack, "the version after it was rolled back"));
        }
        let proof =
            async |told: &Told| HeaderProof::of(&self.log, prefix.clone(), &told.bytes, told.header.sequence.0).await;
        let next_proof = match &next {
            Some(next) => Some(proof(next).await?),
            None => None,
        };
        let file = proofs::time_file(proof(&version).await?, next_proof, time_ms)?;
        Ok(answer(time_ms, &version, next.as_ref(), newest.timestamp_ms, file))
    }
}

/// The refusal of a time that a later version may have, too.
fn not_final(time_ms: u64, newest_ms: u64, newest: Stamp) -> Status {
    let message = format!(
        "a later version may have the time {time_ms} ms, too: the newest header is of {newest_ms} ms; version \
         {newest} is the newest so far"
    );
    status::refuse(Reason::NotYet, message)
}

fn answer(time_ms: u64, version: &Told, next: Option<&Told>, newest_ms: u64, proof: Bytes) -> v1::TimeResponse {
    v1::TimeResponse {
        stamp: Some(convert::to_stamp(version.header.stamp)),
        timestamp_ms: version.header.timestamp_ms,
        next: next.map(|next| convert::to_stamp(next.header.stamp)),
        next_timestamp_ms: next.map_or(0, |next| next.header.timestamp_ms),
        is_final: newest_ms > time_ms,
        proof,
    }
}
