//! The guard before the services: it checks the roles of each call's caller.

use axum::{
    extract::Request,
    http::HeaderMap,
    middleware::{Next, from_fn},
    response::Response,
};
use coppice_proto::{rest, status};
use coppice_types::Reason;
use tonic::{Status, service::Routes};

use super::{
    caller::{CALLER, FORWARDED, claims_to_forward},
    log::{AccessLog, Denial},
    methods::allowed,
};
use crate::{
    identity::{Role, Roles},
    peer::Peer,
};

/// Checks roles, and hands the access log to the services. Clones share the log.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Whether callers need roles.
    pub(super) asks: bool,
    pub(super) log: AccessLog,
}

impl Guard {
    /// Puts the services behind this guard.
    #[must_use]
    pub fn over(&self, routes: Routes) -> Routes {
        let guard = self.clone();
        let ask = move |mut request: Request, next: Next| {
            let peer = request.extensions().get::<Peer>();
            let called = rest::called(request.method(), request.uri().path());
            let judged = guard.judge_forwarded(called, request.headers(), peer);
            let judged = judged.and_then(|()| guard.judge(called, peer));
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

    /// Denies a request that claims to be forwarded, unless a coordinator sent it.
    fn judge_forwarded(&self, path: &str, headers: &HeaderMap, peer: Option<&Peer>) -> Result<(), Box<Status>> {
        let identity = peer.and_then(|peer| peer.identity.as_deref());
        let coordinator = identity.is_some_and(|identity| identity.roles.meets(Roles::of(&[Role::Coordinator])));
        if !self.asks || coordinator || !claims_to_forward(headers) {
            return Ok(());
        }
        let why = "only a coordinator may forward a request";
        let address = peer.and_then(|peer| peer.address);
        self.log.record(&Denial { why, method: Some(path), address, identity });
        Err(Box::new(status::refuse(Reason::Denied, format!("denied: {why}: leave out {FORWARDED} and {CALLER}"))))
    }

    /// Checks that a caller may call the method of this path. A denial is recorded before the
    /// caller is told.
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

/// A certificate's statement about its holder as a member of ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSaid {
    /// Roles are not checked.
    Unchecked,
    /// It is for the member of this name.
    Named { name: String, is_auditor: bool },
    /// It names no member.
    Nobody,
}

/// The member of ledgers that the caller of a request is.
#[must_use]
pub fn member_of(request: &tonic::Extensions) -> MemberSaid {
    if !request.get::<Guard>().is_some_and(|guard| guard.asks) {
        return MemberSaid::Unchecked;
    }
    let identity = request.get::<Peer>().and_then(|peer| peer.identity.as_deref());
    match identity.and_then(|identity| Some((identity.member.clone()?, identity.roles))) {
        Some((name, roles)) => MemberSaid::Named { name, is_auditor: roles.meets(Roles::of(&[Role::Auditor])) },
        None => MemberSaid::Nobody,
    }
}

/// Checks that the caller of a request may also call the method of another path, because the
/// request can do as much as that method. If no [`Guard`] checks roles, every caller may.
///
/// # Errors
/// [`Reason::Denied`], after the denial was recorded.
pub fn may_also(request: &tonic::Extensions, path: &str) -> Result<(), Status> {
    let Some(guard) = request.get::<Guard>() else { return Ok(()) };
    guard.judge(path, request.get::<Peer>()).map_err(|denied| *denied)
}
