//! A caller whose requests say which process they are of.

use coppice_proto::status;
use coppice_types::Reason;
use tonic::Status;

use super::{Denial, Guard, Identity, Peer, Role, Roles};

/// The caller of a request that claims to be of a node or a coordinator, where callers are asked
/// for roles.
#[derive(Clone, Debug)]
pub struct Claimant {
    guard: Guard,
    peer: Option<Peer>,
}

impl Claimant {
    /// The caller of a request; `None` where nobody is asked for roles, and any name may be
    /// claimed.
    #[must_use]
    pub fn of(request: &tonic::Extensions) -> Option<Self> {
        let guard = request.get::<Guard>().filter(|guard| guard.asks)?.clone();
        Some(Self { guard, peer: request.get::<Peer>().cloned() })
    }

    fn identity(&self) -> Option<&Identity> {
        self.peer.as_ref()?.identity.as_deref()
    }

    /// Whether its certificate says a role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.identity().is_some_and(|identity| identity.roles.meets(Roles::of(&[role])))
    }

    /// Checks that its certificate is for the process of this name, which the request says it is.
    ///
    /// # Errors
    /// With the reason [`Reason::Denied`], after the denial was recorded.
    pub fn must_be(&self, path: &str, name: &str) -> Result<(), Status> {
        match self.identity().and_then(|identity| identity.process.as_deref()) {
            Some(own) if own == name => Ok(()),
            Some(own) => Err(self.deny(path, &format!("its certificate is for {own}, and it says it is {name}"))),
            None => Err(self.deny(path, &format!("its certificate names no process, and it says it is {name}"))),
        }
    }

    /// Records a denial, and gives what the caller hears.
    #[must_use]
    pub fn deny(&self, path: &str, why: &str) -> Status {
        let address = self.peer.as_ref().and_then(|peer| peer.address);
        self.guard.log.record(&Denial { why, method: Some(path), address, identity: self.identity() });
        status::refuse(Reason::Denied, format!("denied: {why}"))
    }
}
