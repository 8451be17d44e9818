//! Leader election between operators: only the holder of a `Lease` works.
//!
//! A lease has expired when the reader has seen no change of it for its duration. The reader uses
//! its own clock, so clocks of machines need not agree. An operator that can't renew the lease in
//! time ends, and waits for it again when it is restarted. If two operators take the lease at once,
//! its resource version lets one of them win.

use std::time::Duration;

use coppice_env::Clock;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::api::{Api, PostParams};

/// A holder keeps the lease this long after its last renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// Time between two renewals, and between two looks of the others.
pub const RETRY: Duration = Duration::from_secs(3);
/// A holder that could not renew for this long ends, well before others may take over.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The last seen version of a lease, and when the reader saw it change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    version: Option<String>,
    since: Duration,
}

impl Sighting {
    /// Records what was seen; returns whether we may take the lease at `now`.
    fn may_take(&mut self, lease: &Lease, identity: &str, now: Duration) -> bool {
        if self.version != lease.metadata.resource_version || self.version.is_none() {
            *self = Self { version: lease.metadata.resource_version.clone(), since: now };
        }
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        holder.is_empty() || holder == identity || now.saturating_sub(self.since) > duration
    }
}

/// An operator that waits for the lease or holds it.
#[derive(Debug)]
pub struct Candidate {
    /// The name of the lease.
    pub name: String,
    /// A name that no other operator has.
    pub identity: String,
    sighting: Sighting,
}

impl Candidate {
    #[must_use]
    pub fn new(name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self { name: name.into(), identity: identity.into(), sighting: Sighting::default() }
    }

    /// Takes or renews the lease if possible; returns whether we hold it now.
    ///
    /// # Errors
    /// If the API server doesn't answer.
    pub async fn try_hold(&mut self, api: &Api<Lease>, clock: &dyn Clock) -> Result<bool, kube::Error> {
        let found = api.get_opt(&self.name).await?;
        let wanted = |metadata: ObjectMeta, transitions: i32| Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                renew_time: Some(MicroTime(timestamp(clock))),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        };
        let answer = match found {
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                api.create(&PostParams::default(), &wanted(metadata, 0)).await
            }
            Some(lease) => {
                let spec = lease.spec.clone().unwrap_or_default();
                let ours = spec.holder_identity.as_deref() == Some(&*self.identity);
                let transitions = spec.lease_transitions.unwrap_or(0).saturating_add(i32::from(!ours));
                // The resource version is sent along: of two operators that replace the lease, one
                // is refused.
                let renewed = wanted(lease.metadata.clone(), transitions);
                if !self.sighting.may_take(&lease, &self.identity, clock.now()) {
                    return Ok(false);
                }
                api.replace(&self.name, &PostParams::default(), &renewed).await
            }
        };
        match answer {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The present time, by the wall clock.
#[must_use]
pub fn timestamp(clock: &dyn Clock) -> Timestamp {
    let millis = i64::try_from(clock.wall_ms()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> Lease {
        let metadata = ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_taken_only_when_it_was_not_renewed_for_its_duration() {
        let mut sighting = Sighting::default();
        assert!(!sighting.may_take(&lease("other", "1"), "me", at(100)), "however old it is, it was seen just now");
        assert!(!sighting.may_take(&lease("other", "1"), "me", at(115)));
        assert!(!sighting.may_take(&lease("other", "2"), "me", at(116)), "it was renewed");
        assert!(!sighting.may_take(&lease("other", "2"), "me", at(131)));
        assert!(sighting.may_take(&lease("other", "2"), "me", at(132)));
    }

    #[test]
    fn a_lease_that_nobody_or_we_hold_may_be_taken() {
        let mut sighting = Sighting::default();
        assert!(sighting.may_take(&lease("", "1"), "me", at(0)));
        assert!(sighting.may_take(&lease("me", "2"), "me", at(0)));
    }

    #[test]
    fn a_holder_ends_before_others_take_over() {
        const { assert!(RENEW_DEADLINE.as_secs() + RETRY.as_secs() < DURATION.as_secs()) }
    }
}
