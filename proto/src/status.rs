//! The one mapping from refusals to `tonic::Status`, and back.
//!
//! A refusal carries a `google.rpc.ErrorInfo` whose reason is a [`Reason`]. Its gRPC code follows
//! from the reason's kind. A status without a reason comes from the transport or from a foreign
//! server, and is judged by its code alone.

use std::{collections::HashMap, error::Error};

use coppice_types::{ErrorKind, Reason};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The `domain` of every `ErrorInfo`.
pub const DOMAIN: &str = "coppice.v1";

/// The metadata entry of `NOT_LEADER` with the name of the leading node, possibly empty.
pub const LEADER: &str = "leader";
/// The metadata entry of a coordinator's `NOT_LEADER` with the leading coordinator's address, if it
/// is known.
pub const ADDRESS: &str = "address";

/// Longest message of a refusal, in bytes. Details travel in HTTP/2 headers, whose size peers
/// bound.
const MESSAGE_BYTES_MAX: usize = 2048;

/// The gRPC code of a kind of error.
#[must_use]
pub fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Conflict => Code::FailedPrecondition,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Fenced => Code::Aborted,
        ErrorKind::Corrupted => Code::DataLoss,
        ErrorKind::Internal => Code::Internal,
    }
}

/// A refusal with a reason, and a message for people.
#[must_use]
pub fn refuse(reason: Reason, message: impl Into<String>) -> Status {
    with_metadata(reason, message, [])
}

/// A refusal with further facts by name, as metadata.
#[must_use]
pub fn with_metadata<const N: usize>(
    reason: Reason,
    message: impl Into<String>,
    metadata: [(&str, String); N],
) -> Status {
    let mut message: String = message.into();
    if message.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
    }
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let details = ErrorDetails::with_error_info(reason.name(), DOMAIN, metadata);
    Status::with_error_details(code(reason.kind()), message, details)
}

/// The reason of a refusal; `None` if the status carries no known reason.
#[must_use]
pub fn reason(status: &Status) -> Option<Reason> {
    let info = status.get_details_error_info()?;
    if info.domain == DOMAIN { Reason::from_name(&info.reason) } else { None }
}

/// The metadata entry of a refusal with this name.
#[must_use]
pub fn metadata(status: &Status, name: &str) -> Option<String> {
    let info = status.get_details_error_info()?;
    if info.domain == DOMAIN { info.metadata.get(name).cloned() } else { None }
}

/// The kind of an error, by its reason or else by its code.
#[must_use]
pub fn kind(status: &Status) -> ErrorKind {
    if let Some(reason) = reason(status) {
        return reason.kind();
    }
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::NotFound,
        Code::FailedPrecondition | Code::AlreadyExists => ErrorKind::Conflict,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        Code::Aborted => ErrorKind::Fenced,
        Code::DataLoss => ErrorKind::Corrupted,
        // A broken or overdue call may or may not have had its effect. Callers that can tell may
        // repeat it.
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => ErrorKind::Unavailable,
        // No server sent this: the connection broke, and tonic calls some such errors internal.
        Code::Internal if status.source().is_some() => ErrorKind::Unavailable,
        Code::Internal | Code::Ok => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_wire() {
        for &expected in Reason::ALL {
            let sent = with_metadata(expected, "what happened", [(LEADER, "node-2".to_owned())]);
            let headers = sent.clone().into_http::<()>();
            let received = Status::from_header_map(headers.headers()).expect("a status stands in the headers");
            assert_eq!(reason(&received), Some(expected));
            assert_eq!(kind(&received), expected.kind());
            assert_eq!(received.message(), "what happened");
            assert_eq!(metadata(&received, LEADER).as_deref(), Some("node-2"));
            assert_eq!(metadata(&received, "other"), None);
        }
    }

    #[test]
    fn a_broken_connection_is_no_fault_of_the_server() {
        let said = Status::internal("a bug");
        assert_eq!(kind(&said), ErrorKind::Internal);
        let mut broken = Status::internal("h2 protocol error: http2 error");
        broken.set_source(std::sync::Arc::new(std::io::Error::other("going away")));
        assert_eq!(kind(&broken), ErrorKind::Unavailable);
    }

    #[test]
    fn a_foreign_status_is_judged_by_its_code() {
        let status = Status::unavailable("connection refused");
        assert_eq!(reason(&status), None);
        assert_eq!(kind(&status), ErrorKind::Unavailable);
        let details = ErrorDetails::with_error_info("PRUNED", "somewhere.else", HashMap::new());
        assert_eq!(reason(&Status::with_error_details(Code::NotFound, "", details)), None);
    }

    #[test]
    fn an_overlong_message_is_cut_at_a_character() {
        let status = refuse(Reason::Internal, "ä".repeat(MESSAGE_BYTES_MAX));
        assert_eq!(status.message().len(), MESSAGE_BYTES_MAX);
    }
}
