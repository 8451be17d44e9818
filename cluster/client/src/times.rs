//! Times: which version was the newest at a time, verified if a key is trusted.
//!
//! A client that trusts a key does not let the coordinator choose the version of a read at a time.
//! It first asks for the version with a proof, and then reads at that version.

use coppice_proto::{convert, v1};
use coppice_types::{ErrorKind, Reason};
use coppice_verify::check::{Claim, Question, Subject, TimeClaim};

use crate::{
    Client, Error,
    trust::{Asking, decoded},
};

impl Client {
    /// The newest version that is not later than a time, with the version after it. If
    /// `is_final` is false, a later version may have the time, too.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the proof does not
    /// show the answer.
    pub async fn time(&self, mut request: v1::TimeRequest) -> Result<v1::TimeResponse, Error> {
        let v1::TimeRequest { time_ms, cosigned, .. } = request;
        request.want_proof |= self.trust.is_some();
        let asking = self.asking();
        let response = self.call_time(request).await?;
        if let Some(asking) = asking {
            // Witnesses may lag behind.
            let asking = if cosigned { Asking { seen: 0, ..asking } } else { asking };
            let file = decoded(&response.proof)?;
            let question = Question::about(Subject::Time(time_ms));
            let claim = self.trust_claim(&asking, &file, &question, false).await?;
            let Claim::Time(claim) = claim else { return Err(Error::Untrusted("the proof is of another kind")) };
            if !agree(&response, &claim) {
                return Err(Error::Untrusted("the answer and its proof disagree"));
            }
        }
        Ok(response)
    }

    /// Names the version of a read at a time, if a key is trusted. The coordinator refuses a read
    /// that names a version as well.
    pub(crate) async fn settle_time(&self, read: &mut Option<v1::ReadOptions>) -> Result<(), Error> {
        let Some(options) = read.as_mut().filter(|_| self.trust.is_some()) else { return Ok(()) };
        let Some(time_ms) = options.at_time_ms else { return Ok(()) };
        if options.at.is_some() || options.any_epoch {
            return Ok(());
        }
        let cosigned = options.cosigned;
        let told = self.time(v1::TimeRequest { time_ms, want_proof: true, cosigned }).await?;
        if !told.is_final {
            return Err(not_final(time_ms));
        }
        (options.at, options.at_time_ms) = (told.stamp, None);
        Ok(())
    }
}

pub(crate) fn agree(response: &v1::TimeResponse, claim: &TimeClaim) -> bool {
    let next = claim.next.map(|(stamp, _)| convert::to_stamp(stamp));
    response.stamp == Some(convert::to_stamp(claim.header.stamp))
        && response.timestamp_ms == claim.header.timestamp_ms
        && response.next == next
        && response.next_timestamp_ms == claim.next.map_or(0, |(_, time_ms)| time_ms)
        && response.is_final == claim.is_final()
}

/// The refusal that a coordinator gives, too.
fn not_final(time_ms: u64) -> Error {
    Error::Refused {
        reason: Some(Reason::NotYet),
        kind: ErrorKind::Conflict,
        message: format!("a later version may have the time {time_ms} ms, too: no header is later yet"),
        outcome_unknown: false,
    }
}

#[cfg(test)]
mod tests;
