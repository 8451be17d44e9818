//! Who may call what: roles in the certificates of callers, one table of all methods, and a record of what was denied.
//!
//! A certificate says a role by a URI among its alternative names, [`ROLE_URI`] and the role's name; it may say several. The cluster's processes
//! are `node` and `coordinator`, clients are `reader`, `writer`, `operator` or `auditor`. What the table ([`allowed`]) does not allow to one of a
//! caller's roles is denied, and what it does not know to everybody.
//!
//! **Invariants.** Behind a [`Guard`] no call reaches a service before its caller's roles were looked at. Without TLS there is nobody to ask for
//! roles: then only the loopback interface is listened on, unless the settings say otherwise.

mod certificate;
mod denials;
mod methods;

use std::{net::SocketAddr, path::PathBuf};

use axum::{
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
};
use coppice_proto::status;
use coppice_types::Reason;
use serde::{Deserialize, Serialize};
use tonic::{Status, service::Routes};

pub use certificate::{Identity, ROLE_URI, Role, Roles};
pub use denials::{Denials, FILE_BYTES_MAX};
pub use methods::allowed;

use crate::Failure;
pub(crate) use denials::Denial;

/// Who may call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Whether callers need roles.
    pub roles: Demand,
    /// Without TLS, other addresses than those of the loopback interface may be listened on.
    pub plaintext: bool,
    /// Where denials are written; to the log, if nothing is said.
    pub denials_file: Option<PathBuf>,
}

/// Whether callers need roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    /// With TLS, every call needs a certificate with a role that allows it.
    #[default]
    Required,
    /// Whoever may connect may call everything.
    Ignored,
}

impl Access {
    /// Checks that an address may be listened on.
    ///
    /// # Errors
    /// If it can be reached from other machines, and nobody would be asked who he is.
    pub fn check(&self, listen: SocketAddr, tls: bool) -> Result<(), Failure> {
        if tls || self.plaintext || listen.ip().is_loopback() {
            return Ok(());
        }
        let failure = Failure::usage(format!("listen = {listen} without [tls]: whoever reaches it might do anything"));
        Err(failure.hint("Give certificates by [tls], listen on 127.0.0.1, or set access.plaintext = true."))
    }

    /// What stands before the services: nothing, where nobody is asked for roles. Denials are recorded in any case.
    ///
    /// # Errors
    /// If the file of denials can't be opened.
    pub fn open(&self, tls: bool) -> Result<(Option<Guard>, Denials), Failure> {
        let denials = match &self.denials_file {
            None => Denials::to_log(),
            Some(path) => Denials::to_file(path)?,
        };
        Ok(((tls && self.roles == Demand::Required).then(|| Guard { denials: denials.clone() }), denials))
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is.
    pub address: Option<SocketAddr>,
    /// What its certificate says; `None` if it showed none.
    pub identity: Option<std::sync::Arc<Identity>>,
}

/// Asks for roles. Clones are the same.
#[derive(Clone, Debug)]
pub struct Guard {
    denials: Denials,
}

impl Guard {
    /// The same services, behind this guard.
    #[must_use]
    pub fn over(&self, routes: Routes) -> Routes {
        let guard = self.clone();
        let ask = move |mut request: Request, next: Next| {
            let judged = guard.judge(request.uri().path(), request.extensions().get::<Peer>());
            request.extensions_mut().insert(guard.clone());
            async move {
                match judged {
                    Ok(()) => next.run(request).await,
                    Err(status) => status.into_http::<axum::body::Body>() as Response,
                }
            }
        };
        routes.into_axum_router().layer(from_fn(ask)).into()
    }

    /// Whether a caller may call the method of this path. A denial is recorded before the caller hears of it.
    fn judge(&self, path: &str, peer: Option<&Peer>) -> Result<(), Box<Status>> {
        let identity = peer.and_then(|peer| peer.identity.as_deref());
        let roles = identity.map_or(Roles::NONE, |identity| identity.roles);
        let allowed = allowed(path);
        if allowed.is_some_and(|allowed| allowed.meets(roles)) {
            return Ok(());
        }
        let why = match (allowed, identity) {
            (_, None) => "it showed no certificate",
            (None, _) => "there is no such method",
            (Some(_), Some(_)) if roles == Roles::NONE => "its certificate has no role",
            (Some(_), Some(_)) => "its roles do not allow it",
        };
        let address = peer.and_then(|peer| peer.address);
        self.denials.record(&Denial { why, method: Some(path), address, identity });
        let takes = allowed.map_or_else(String::new, |allowed| format!("; the roles that may: {allowed}"));
        Err(Box::new(status::refuse(Reason::Denied, format!("denied: {why}{takes}"))))
    }
}

/// Whether the caller of a request may also call the method of another path: for requests that can ask for as much as that one. Everybody may
/// where no [`Guard`] stands before the services.
///
/// # Errors
/// With the reason [`Reason::Denied`], after the denial was recorded.
pub fn may_also(request: &tonic::Extensions, path: &str) -> Result<(), Status> {
    let Some(guard) = request.get::<Guard>() else { return Ok(()) };
    guard.judge(path, request.get::<Peer>()).map_err(|denied| *denied)
}

#[cfg(test)]
mod tests;
