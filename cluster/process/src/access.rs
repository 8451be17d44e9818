//! The rights of callers: roles in certificates, one table of all methods, the callers, and the
//! access log.
//!
//! A certificate states a role by a URI among its alternative names: [`ROLE_URI`] and the role's
//! name. It may state several. The cluster's processes are `node` and `coordinator`; clients are
//! `reader`, `writer`, `operator`, `auditor`, `member` or `cosigner`. A call is denied unless the
//! table ([`allowed`]) allows it to one of the caller's roles. A method that is not in the table is
//! denied to everybody.
//!
//! A certificate of a node or coordinator also states the process's name, by [`NAME_URI`] and the
//! name. Where a request says which process sent it, the service asks the [`Claimant`] whether that
//! is true.
//!
//! **Invariants.** Behind a [`Guard`], no call reaches a service before the roles of its caller are
//! checked. Without TLS, callers have no roles that could be checked. Then a process only listens
//! on the loopback interface, unless the settings say otherwise.

mod action;
mod caller;
mod claimant;
mod guard;
mod log;
mod methods;
mod step;

use std::{net::SocketAddr, path::PathBuf};

use coppice_proto::secure::Expected;
use serde::{Deserialize, Serialize};

use crate::Failure;

pub(crate) use self::log::Denial;
pub use self::{
    action::{Action, noted, recorded},
    caller::{CALLER, Caller, FORWARDED, Name},
    claimant::Claimant,
    guard::{Guard, MemberSaid, may_also, member_of},
    log::{AccessLog, FILE_BYTES_MAX},
    methods::allowed,
};
pub use crate::{
    identity::{Identity, MEMBER_URI, NAME_URI, ROLE_URI, Role, Roles},
    peer::Peer,
};

/// The rules for accepting calls: a part of every process's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    pub roles: Demand,
    /// Without TLS, allows listening on addresses other than those of the loopback interface.
    pub plaintext: bool,
    /// The file for denials and actions of administrators. `None`: they go to the process's log.
    pub log_file: Option<PathBuf>,
}

/// Whether callers need roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    /// With TLS, every call needs a certificate with a role that allows it.
    #[default]
    Required,
    /// Every caller that can connect may call everything. Any process may answer a call of this
    /// one.
    Ignored,
}

impl Access {
    /// Checks that the process may listen on an address. `setting` is the key that holds it.
    ///
    /// # Errors
    /// If other machines can reach the address, and callers would not have to show a certificate.
    pub fn check(&self, setting: &str, listen: SocketAddr, tls: bool) -> Result<(), Failure> {
        if tls || self.plaintext || listen.ip().is_loopback() {
            return Ok(());
        }
        let failure =
            Failure::usage(format!("{setting} = {listen} without [tls]: anybody who can connect could do anything"));
        Err(failure.hint("Give certificates by [tls], listen on 127.0.0.1, or set access.plaintext = true."))
    }

    /// The required content of the own certificate of a process with this role and name. Anything
    /// is accepted if roles are ignored.
    #[must_use]
    pub fn expects(&self, role: Role, name: &str) -> Expected {
        match self.roles {
            Demand::Required => Expected::Process(role, name.to_owned()),
            Demand::Ignored => Expected::Anybody,
        }
    }

    /// Opens the access log, and makes the guard. The guard checks roles if there is TLS and the
    /// settings demand them. The access log is kept in any case.
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

#[cfg(test)]
mod tests;
