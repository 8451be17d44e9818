//! The next pod of a cluster to replace, over the rollouts of all roles.

use crate::{
    reconcile::build::{Facts, Role},
    rollout::{self, Fleet, State, Step},
};

/// The result of the rollouts of all roles: at most one pod at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All pods are current.
    Current,
    /// No pod is replaced now, for the reason in the text.
    Wait(String),
    /// This pod is to be deleted.
    Restart { pod: String, why: &'static str },
}

/// Chooses the next pod. A role waits for those before it, except for pods that can't serve anyway:
/// they may be what the others wait for.
#[must_use]
pub fn plan(facts: &Facts, fleets: &[(Role, Fleet)]) -> Plan {
    let mut waits = None;
    for role in Role::ALL.into_iter().filter(|role| facts.count(*role) > 0) {
        let Some((_, fleet)) = fleets.iter().find(|(of, _)| *of == role) else {
            waits = waits.or_else(|| Some(format!("{} is being made", facts.set(role))));
            continue;
        };
        let step = if role == Role::Reader { rollout::next_reader(&fleet.members) } else { rollout::next(fleet) };
        match step {
            Step::Done => {}
            Step::Wait(words) => waits = waits.or(Some(words)),
            Step::Restart { member, why } => {
                let member = &fleet.members[member];
                if waits.is_none() || member.state != State::Ready {
                    return Plan::Restart { pod: member.name.clone(), why };
                }
            }
        }
    }
    waits.map_or(Plan::Current, Plan::Wait)
}
