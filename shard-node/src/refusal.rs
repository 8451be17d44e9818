//! A refusal: an answer that says why a request was not carried out.

use coppice_proto::{convert::Malformed, status};
use coppice_types::Reason;
use tonic::Status;

/// The reason why a command or read was refused. Refusals of `apply` are functions of the
/// replicated state, so they are the same on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub reason: Reason,
    /// The explanation, for people.
    pub message: String,
    /// The name and value of a further fact.
    pub fact: Option<(&'static str, String)>,
}

impl Refusal {
    /// A refusal without further facts.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), fact: None }
    }

    /// Adds a fact that callers need.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fact = Some((name, value.to_string()));
        self
    }

    /// The refusal of a replica that does not lead. `leader` is the leading node, or empty if
    /// unknown.
    #[must_use]
    pub fn not_leader(leader: &str) -> Self {
        Self::new(Reason::NotLeader, "another replica leads this group").with(status::LEADER, leader)
    }

    /// Whether waiting may help, since the replica may only be behind.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self.reason, Reason::StateMissing | Reason::MissedAdmin)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal.fact {
            Some(fact) => status::with_metadata(refusal.reason, refusal.message, [fact]),
            None => status::refuse(refusal.reason, refusal.message),
        }
    }
}

/// A message that no correct peer sends.
impl From<Malformed> for Refusal {
    fn from(error: Malformed) -> Self {
        Self::new(Reason::InvalidArgument, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::ErrorKind;

    use super::*;

    #[test]
    fn a_refusal_reaches_a_caller_with_its_reason_and_its_fact() {
        let status = Status::from(Refusal::not_leader("node-2"));
        assert_eq!(status::reason(&status), Some(Reason::NotLeader));
        assert_eq!(status::metadata(&status, status::LEADER).as_deref(), Some("node-2"));
        for reason in Reason::ALL {
            let status = Status::from(Refusal::new(*reason, "why"));
            assert_eq!((status::reason(&status), status::kind(&status)), (Some(*reason), reason.kind()));
            assert_eq!(status.message(), "why");
        }
    }

    #[test]
    fn only_a_replica_that_is_behind_is_worth_waiting_for() {
        let passing: Vec<_> = Reason::ALL.iter().filter(|reason| Refusal::new(**reason, "").may_pass()).collect();
        assert_eq!(passing, [&Reason::StateMissing, &Reason::MissedAdmin]);
        assert!(passing.iter().all(|reason| reason.kind() == ErrorKind::Unavailable), "other replicas may have it");
    }

    #[test]
    fn a_malformed_message_names_its_field() {
        let malformed = coppice_proto::convert::digest(&[1; 31], "base.digest").expect_err("it is short");
        let refusal = Refusal::from(malformed);
        assert_eq!(refusal.reason, Reason::InvalidArgument);
        assert!(refusal.message.contains("base.digest"), "{refusal:?}");
    }
}
