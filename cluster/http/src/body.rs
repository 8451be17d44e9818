//! Bodies of answers: whole ones, whose length is stated, and streams of lines.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::{BufMut, Bytes, BytesMut};
use coppice_proto::status;
use coppice_types::Reason;
use futures::stream;
use serde_json::Value;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::problem;

pub(crate) const JSON: &str = "application/json";
pub(crate) const LINES: &str = "application/jsonl";
pub(crate) const EVENTS: &str = "text/event-stream";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const BYTES: &str = "application/octet-stream";

/// The header with the version that an answer is of.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("coppice-version");

/// The headers that every answer has: no cache keeps it, and a browser that is led to it runs
/// nothing of it.
pub(crate) fn guard(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
}

/// An answer of this media type.
fn answer(kind: &'static str, body: Body) -> Response {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    guard(answer.headers_mut());
    answer
}

/// An answer whose length is stated.
pub(crate) fn whole(kind: &'static str, bytes: Bytes) -> Response {
    let length = bytes.len().into();
    let mut answer = answer(kind, Body::from(bytes));
    answer.headers_mut().insert(header::CONTENT_LENGTH, length);
    answer
}

/// An object on one line.
pub(crate) fn json(object: &Value) -> Response {
    whole(JSON, line(object))
}

/// An object, and the end of its line.
pub(crate) fn line(object: &Value) -> Bytes {
    let mut line = BytesMut::new().writer();
    // Values have text keys, and memory does not fail to be written.
    let _ = serde_json::to_writer(&mut line, object);
    let mut line = line.into_inner();
    line.put_u8(b'\n');
    line.freeze()
}

/// An empty answer.
pub(crate) fn empty(code: StatusCode) -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = code;
    guard(answer.headers_mut());
    answer
}

/// An answer that is sent as it is made. If its source fails, the answer has a last line that says
/// why, and breaks off after it.
pub(crate) fn streamed(
    kind: &'static str,
    parts: impl Stream<Item = Result<Bytes, Status>> + Send + 'static,
) -> Response {
    let told = parts.map(|part| match part {
        Ok(part) => stream::iter(vec![Ok(part)]),
        Err(failed) => {
            let said = line(&serde_json::json!({ "problem": problem::document(&failed) }));
            stream::iter(vec![Ok(said), Err(failed)])
        }
    });
    answer(kind, Body::from_stream(futures::StreamExt::flatten(told)))
}

/// The whole body of a request.
pub(crate) async fn read(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Status> {
    let large = || status::refuse(Reason::LimitExceeded, format!("the body has more than {bytes_max} bytes"));
    let stated = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if stated.is_some_and(|stated| stated > bytes_max as u64) {
        return Err(large());
    }
    let mut parts = body.into_data_stream();
    let mut bytes = BytesMut::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| Status::from_error(error.into_inner()))?;
        if bytes.len() + part.len() > bytes_max {
            return Err(large());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}
