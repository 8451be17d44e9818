//! Writes: one record, or a batch.

use axum::{
    body::Body,
    http::{
        HeaderValue,
        header::{CONTENT_ENCODING, CONTENT_RANGE, ETAG, IF_MATCH, IF_NONE_MATCH},
    },
};
use bytes::Bytes;
use coppice_proto::v1::{self, ledger_server::Ledger, operation::Change, precondition::Condition};
use coppice_verify::header::Header;
use serde_json::json;
use tonic::Status;

use crate::{
    api::{Answer, Api},
    ask::{Ask, Form, PROOF, invalid, message_of, tag, text_of},
    body::{self, VERSION},
    forms::commit_json,
    line::Line,
};

/// The headers that name a session, and the number of a batch in it.
const SESSION: &str = "coppice-session";
const NUMBER: &str = "coppice-number";

impl<L: Ledger> Api<L> {
    /// Puts the body of a request under a key.
    pub(crate) async fn put(&self, ask: &Ask<'_>, key: Vec<u8>, sent: Body) -> Answer {
        let preconditions = preconditions(ask, &key)?;
        let value = self.read(ask, sent).await?;
        let operation = v1::Operation { key: key.into(), change: Some(Change::Put(value)) };
        let batch = v1::Batch { operations: vec![operation], preconditions, ..v1::Batch::default() };
        self.commit(ask, batch, true).await
    }

    /// Deletes a key.
    pub(crate) async fn delete(&self, ask: &Ask<'_>, key: Vec<u8>) -> Answer {
        let preconditions = preconditions(ask, &key)?;
        let operation = v1::Operation { key: key.into(), change: Some(Change::Delete(true)) };
        let batch = v1::Batch { operations: vec![operation], preconditions, ..v1::Batch::default() };
        self.commit(ask, batch, false).await
    }

    /// Commits a line of the form that `coppice load` reads.
    pub(crate) async fn batch(&self, ask: &Ask<'_>, sent: Body) -> Answer {
        if ask.header(&IF_MATCH)?.is_some() || ask.header(&IF_NONE_MATCH)?.is_some() {
            return Err(invalid("If-Match and If-None-Match are for one record; a batch has none"));
        }
        ask.may_write()?;
        ask.query(&[])?;
        let sent = self.read(ask, sent).await?;
        let Line { operations, notes } =
            Line::parse(sent.trim_ascii()).map_err(|what| invalid(format!("no batch: {what}")))?;
        drop(sent);
        let metadata = if notes.is_empty() { Bytes::new() } else { json!(notes).to_string().into() };
        self.commit(ask, v1::Batch { operations, metadata, ..v1::Batch::default() }, false).await
    }

    /// Opens a session; one that is open stays as it is. It is not opened by its first write: that
    /// write, sent again when the session has ended, would be applied twice.
    pub(crate) async fn open_session(&self, ask: &Ask<'_>, id: &str) -> Answer {
        ask.may_write()?;
        ask.query(&[])?;
        let request = v1::OpenSessionRequest { session_id: session_id(id)? };
        let opened = self.ledger.open_session(ask.call(request)).await?.into_inner();
        Ok(body::json(&json!({ "highest_number": opened.highest_number, "window": opened.window })))
    }

    /// The body of a write.
    async fn read(&self, ask: &Ask<'_>, sent: Body) -> Result<Bytes, Status> {
        for name in [CONTENT_RANGE, CONTENT_ENCODING] {
            if ask.header(&name)?.is_some() {
                return Err(invalid(format!("values are written as they are sent, and as a whole: leave out {name}")));
            }
        }
        body::read(ask.headers(), sent, self.body_bytes_max).await
    }

    /// Commits a batch, at most once if the caller gives it a number.
    async fn commit(&self, ask: &Ask<'_>, batch: v1::Batch, is_put: bool) -> Answer {
        let (session_id, number) = session(ask)?;
        let want_receipt = ask.form() == Form::Proof;
        let request = v1::CommitRequest { batch: Some(batch), session_id, number, want_receipt };
        let done = self.ledger.commit(ask.call(request)).await?.into_inner();
        let stamp = done.stamp.ok_or_else(|| Status::internal("a commit without a version"))?;
        let mut answer = if want_receipt {
            body::whole(PROOF, done.receipt)
        } else {
            let header = Header::decode(&done.header).map_err(|_| Status::internal("a commit without a header"))?;
            let mut object = commit_json(stamp, &header, &done);
            object["replayed"] = json!(done.replayed);
            body::json(&object)
        };
        let version = text_of(stamp);
        let headers = answer.headers_mut();
        if is_put && let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
            headers.insert(ETAG, tag);
        }
        if let Ok(version) = HeaderValue::try_from(version) {
            headers.insert(VERSION, version);
        }
        Ok(answer)
    }
}

/// The conditions of a write of one record.
fn preconditions(ask: &Ask<'_>, key: &[u8]) -> Result<Vec<v1::Precondition>, Status> {
    ask.may_write()?;
    ask.query(&[])?;
    let condition = match (ask.header(&IF_MATCH)?, ask.header(&IF_NONE_MATCH)?) {
        (None, None) => return Ok(Vec::new()),
        (Some(text), None) => Condition::LastChanged(message_of(tag(text)?)),
        (None, Some("*")) => Condition::Absent(true),
        (None, Some(_)) => return Err(invalid("If-None-Match of a write is *: the key has no record")),
        (Some(_), Some(_)) => return Err(invalid("If-Match and If-None-Match exclude each other")),
    };
    Ok(vec![v1::Precondition { key: key.to_vec().into(), condition: Some(condition) }])
}

/// The bytes of a session's id.
fn session_id(text: &str) -> Result<Bytes, Status> {
    let id = hex::decode(text).ok().filter(|id| id.len() == 16);
    id.map(Bytes::from).ok_or_else(|| invalid("a session has 32 hex digits, which the client chooses at random"))
}

/// The session of a write, and its number there; both empty for a write outside of any session.
fn session(ask: &Ask<'_>) -> Result<(Bytes, u64), Status> {
    match (ask.own_header(SESSION)?, ask.own_header(NUMBER)?) {
        (None, None) => Ok((Bytes::new(), 0)),
        (Some(session), Some(number)) => {
            let id = session_id(session)?;
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|number| digits && *number > 0);
            let number = number.ok_or_else(|| invalid("Coppice-Number counts the writes of the session from 1"))?;
            Ok((id, number))
        }
        _ => Err(invalid("Coppice-Session and Coppice-Number are given together")),
    }
}
