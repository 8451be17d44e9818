//! A caller whose requests say which process sent them.

use coppice_proto::status;
use coppice_types::Reason;
use tonic::Status;

use super::{guard::Guard, log::Denial};
use crate::{
    identity::{Identity, Role, Roles},
    peer::Peer,
};

/// The caller of a request that claims to come from a node or a coordinator, where roles are
/// checked.
#[derive(Clone, Debug)]
pub struct Claimant {
    guard: Guard,
    peer: Option<Peer>,
}

impl Claimant {
    /// The caller of a request; `None` if roles are not checked, so that any name may be claimed.
    #[must_use]
    pub fn of(request: &tonic::Extensions) -> Option<Self> {
        let guard = request.get::<Guard>().filter(|guard| guard.asks)?.clone();
        Some(Self { guard, peer: request.get::<Peer>().cloned() })
    }

    fn identity(&self) -> Option<&Identity> {
        self.peer.as_ref()?.identity.as_deref()
    }

    /// Whether its certificate states a role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.identity().is_some_and(|identity| identity.roles.meets(Roles::of(&[role])))
    }

    /// Checks that the caller's certificate is for the process that the request names as its
    /// sender.
    ///
    /// # Errors
    /// [`Reason::Denied`], after the denial was recorded.
    pub fn must_be(&self, path: &str, name: &str) -> Result<(), Status> {
        match self.identity().and_then(|identity| identity.process.as_deref()) {
            Some(own) if own == name => Ok(()),
            Some(own) => Err(self.deny(path, &format!("its certificate is for {own}, and it says it is {name}"))),
            None => Err(self.deny(path, &format!("its certificate names no process, and it says it is {name}"))),
        }
    }

    /// Records a denial, and returns the status for the caller.
    #[must_use]
    pub fn deny(&self, path: &str, why: &str) -> Status {
        let address = self.peer.as_ref().and_then(|peer| peer.address);
        self.guard.log.record(&Denial { why, method: Some(path), address, identity: self.identity() });
        status::refuse(Reason::Denied, format!("denied: {why}"))
    }
}
