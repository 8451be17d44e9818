//! What the services refuse before a replica hears of it: calls over memory pipes, and callers with
//! certificates.

use std::sync::Arc;

use coppice_process::access::{Access, Guard, Identity, Peer as Caller, Role, Roles};
use tonic::Request;

pub(super) fn guard() -> Guard {
    Access::default().open(true).expect("denials go to the log").0
}

/// A request of a process with a certificate of this role.
pub(super) fn certified<T>(message: T, role: Role, process: &str) -> Request<T> {
    let identity = Identity {
        subject: format!("CN={process}"),
        serial: "01".to_owned(),
        fingerprint: "ab".repeat(32),
        roles: Roles::of(&[role]),
        process: Some(process.to_owned()),
        member: None,
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(guard());
    request.extensions_mut().insert(Caller { address: None, identity: Some(Arc::new(identity)), line: None });
    request
}
