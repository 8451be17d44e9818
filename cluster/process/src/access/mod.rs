//! Who may call what: roles in the certificates of callers, one table of all methods, the callers, and the access log.
//!
//! A certificate says a role by a URI among its alternative names, [`ROLE_URI`] and the role's name; it may say several. The cluster's processes
//! are `node` and `coordinator`, clients are `reader`, `writer`, `operator` or `auditor`. What the table ([`allowed`]) does not allow to one of a
//! caller's roles is denied, and what it does not know to everybody.
//!
//! A certificate of a node or coordinator also says the process's name, by [`NAME_URI`] and the
//! name. Where a request says which process it is of, the service asks the [`Claimant`] whether it
//! is that one.
//!
//! **Invariants.** Behind a [`Guard`] no call reaches a service before its caller's roles were looked at. Without TLS there is nobody to ask for
//! roles: then only the loopback interface is listened on, unless the settings say otherwise.

mod action;
mod caller;
mod certificate;
mod claimant;
mod log;
mod methods;

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use axum::{
    extract::Request,
    http::HeaderMap,
    middleware::{Next, from_fn},
    response::Response,
};
use coppice_proto::status;
use coppice_types::Reason;
use serde::{Deserialize, Serialize};
use tonic::{Status, service::Routes};

pub use action::{Action, noted, recorded};
pub use caller::{CALLER, Caller, FORWARDED, Name};
pub use certificate::{Identity, NAME_URI, ROLE_URI, Role, Roles};
pub use claimant::Claimant;
pub use log::{AccessLog, FILE_BYTES_MAX};
pub use methods::allowed;

use crate::{
    Failure,
    net::{Used, calls::Party},
    tls::Expected,
};
pub(crate) use log::Denial;

/// Who may call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Whether callers need roles.
    pub roles: Demand,
    /// Without TLS, other addresses than those of the loopback interface may be listened on.
    pub plaintext: bool,
    /// Where denials and actions of administrators are written; to the process's log, if nothing is said.
    pub log_file: Option<PathBuf>,
}

/// Whether callers need roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    /// With TLS, every call needs a certificate with a role that allows it.
    #[default]
    Required,
    /// Whoever may connect may call everything, and whoever is connected to may answer.
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

    /// What a process of this role and name says of itself, and demands of others: nothing, where
    /// roles are ignored.
    #[must_use]
    pub fn expects(&self, role: Role, name: &str) -> Expected {
        match self.roles {
            Demand::Required => Expected::Process(role, name.to_owned()),
            Demand::Ignored => Expected::Anybody,
        }
    }

    /// What stands before the services. It asks for roles if there is TLS and the settings say so; the access log is kept in any case.
    ///
    /// # Errors
    /// If the file of the access log can't be opened.
    pub fn open(&self, tls: bool) -> Result<(Guard, AccessLog), Failure> {
        let log = match &self.log_file {
            None => AccessLog::to_log(),
            Some(path) => AccessLog::to_file(path)?,
        };
        let asks = tls && self.roles == Demand::Required;
        Ok((Guard { asks, log: log.clone() }, log))
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Where it is.
    pub address: Option<SocketAddr>,
    /// What its certificate says; `None` if it showed none.
    pub identity: Option<std::sync::Arc<Identity>>,
    /// Counts the calls on its connection, if that came by a listener.
    pub line: Option<Used>,
}

impl Peer {
    /// Whom its calls are for, as far as bounds are concerned.
    pub(crate) fn party(&self) -> Party {
        let Some(identity) = &self.identity else {
            return self.address.map_or(Party::Inside, |address| Party::Address(network(address.ip())));
        };
        let name = identity.name();
        match identity.roles.meets(Roles::of(&[Role::Node, Role::Coordinator])) {
            true => Party::Cluster(name),
            false => Party::Subject(name),
        }
    }
}

/// Whoever has one address of IPv6 has those around it.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
        },
    }
}

/// Asks for roles, and gives the services the access log. Clones are the same.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Whether callers need roles.
    asks: bool,
    log: AccessLog,
}

impl Guard {
    /// The same services, behind this guard.
    #[must_use]
    pub fn over(&self, routes: Routes) -> Routes {
        let guard = self.clone();
        let ask = move |mut request: Request, next: Next| {
            let peer = request.extensions().get::<Peer>();
            let judged = guard.judge_forwarded(request.uri().path(), request.headers(), peer);
            let judged = judged.and_then(|()| guard.judge(request.uri().path(), peer));
            request.extensions_mut().insert(guard.log.clone());
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

    /// Whether a request may say that it was forwarded: only that of a coordinator.
    fn judge_forwarded(&self, path: &str, headers: &HeaderMap, peer: Option<&Peer>) -> Result<(), Box<Status>> {
        let identity = peer.and_then(|peer| peer.identity.as_deref());
        let coordinator = identity.is_some_and(|identity| identity.roles.meets(Roles::of(&[Role::Coordinator])));
        if !self.asks || coordinator || !caller::claims_to_forward(headers) {
            return Ok(());
        }
        let why = "only a coordinator may forward a request";
        let address = peer.and_then(|peer| peer.address);
        self.log.record(&Denial { why, method: Some(path), address, identity });
        Err(Box::new(status::refuse(Reason::Denied, format!("denied: {why}: leave out {FORWARDED} and {CALLER}"))))
    }

    /// Whether a caller may call the method of this path. A denial is recorded before the caller hears of it.
    fn judge(&self, path: &str, peer: Option<&Peer>) -> Result<(), Box<Status>> {
        let identity = peer.and_then(|peer| peer.identity.as_deref());
        let roles = identity.map_or(Roles::NONE, |identity| identity.roles);
        let allowed = allowed(path);
        if !self.asks || allowed.is_some_and(|allowed| allowed.meets(roles)) {
            return Ok(());
        }
        let why = match (allowed, identity) {
            (_, None) => "it showed no certificate",
            (None, _) => "there is no such method",
            (Some(_), Some(_)) if roles == Roles::NONE => "its certificate has no role",
            (Some(_), Some(_)) => "its roles do not allow it",
        };
        let address = peer.and_then(|peer| peer.address);
        self.log.record(&Denial { why, method: Some(path), address, identity });
        let takes = allowed.map_or_else(String::new, |allowed| format!("; the roles that may: {allowed}"));
        Err(Box::new(status::refuse(Reason::Denied, format!("denied: {why}{takes}"))))
    }
}

/// Whether the caller of a request may also call the method of another path: for requests that can ask for as much as that one. Everybody may
/// where no [`Guard`] that asks for roles stands before the services.
///
/// # Errors
/// With the reason [`Reason::Denied`], after the denial was recorded.
pub fn may_also(request: &tonic::Extensions, path: &str) -> Result<(), Status> {
    let Some(guard) = request.get::<Guard>() else { return Ok(()) };
    guard.judge(path, request.get::<Peer>()).map_err(|denied| *denied)
}

#[cfg(test)]
mod tests;
