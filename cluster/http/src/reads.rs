//! Reads of records: one key, a range, the changes of a key, the difference between two versions.

use axum::http::{
    HeaderValue, StatusCode,
    header::{ETAG, IF_MATCH, IF_NONE_MATCH, LINK},
};
use bytes::{BufMut, Bytes, BytesMut};
use coppice_proto::{
    status,
    v1::{self, ledger_server::Ledger},
};
use coppice_types::Reason;
use futures::stream;
use serde_json::{Map, Value, json};
use tokio_stream::StreamExt;
use tonic::Status;

use crate::{
    api::{Answer, Api},
    ask::{Ask, Form, PROOF, Query, encoded, invalid, tag, text_of},
    body::{self, BYTES, LINES, VERSION},
    problem,
};

/// The parameters that name the state to read.
macro_rules! with_state {
    ($($name:literal),*) => { &["version", "epoch", "stale", "cosigned", $($name),*] };
}

/// Records of a page, if the caller does not say how many, and at most.
const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: usize = 256 << 10;

fn missing(what: &'static str) -> Status {
    Status::internal(format!("an answer of the ledger has no {what}"))
}

/// Bytes in JSON: a text, or an object with their hex if they are none.
fn bytes_json(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({ "hex": hex::encode(bytes) }), |text| json!(text))
}

fn stamp_json(stamp: Option<v1::Stamp>) -> Value {
    stamp.map_or(Value::Null, |stamp| json!({ "epoch": stamp.epoch, "version": stamp.version }))
}

fn header_value(text: String) -> Result<HeaderValue, Status> {
    HeaderValue::try_from(text).map_err(|_| Status::internal("a text does not fit into a header"))
}

/// A record that was found.
fn record_json(record: &v1::Record) -> Value {
    json!({
        "key": bytes_json(&record.key),
        "value": bytes_json(&record.value),
        "last_changed": stamp_json(record.last_changed),
    })
}

impl<L: Ledger> Api<L> {
    /// The record of a key: its value, all of it as JSON, or a proof of it.
    pub(crate) async fn get(&self, ask: &Ask<'_>, key: Vec<u8>) -> Answer {
        let (form, mut read) = (ask.form(), ask.query(with_state![])?.read_options()?);
        let conditions = Conditions::of(ask)?;
        (read.want_proof, read.values_in_proof) = (form == Form::Proof, form == Form::Proof);
        let request = v1::GetRequest { key: key.into(), read: Some(read) };
        let answer = self.ledger.get(ask.call(request)).await?.into_inner();
        let record = answer.record.ok_or_else(|| missing("record"))?;
        let version = text_of(answer.read_at.ok_or_else(|| missing("version"))?);
        let changed = record.last_changed.filter(|_| record.found).map(text_of);
        let not_modified = conditions.judge(changed.as_deref())?;
        let mut response = match form {
            _ if not_modified => body::empty(StatusCode::NOT_MODIFIED),
            // A proof may be of an absence.
            Form::Proof => body::whole(PROOF, answer.proof),
            _ if !record.found => {
                let refused = status::refuse(Reason::NotFound, format!("the key has no record in version {version}"));
                return Err(problem::with_header(refused, "coppice-version", &version));
            }
            Form::Json => {
                let mut object = record_json(&record);
                object["read_at"] = stamp_json(answer.read_at);
                body::json(&object)
            }
            Form::Plain => body::whole(BYTES, record.value),
        };
        let headers = response.headers_mut();
        headers.insert(VERSION, header_value(version)?);
        if let Some(changed) = changed {
            headers.insert(ETAG, header_value(format!("\"{changed}\""))?);
        }
        Ok(response)
    }

    /// A page of a range: records as lines, or a proof of them.
    pub(crate) async fn range(&self, ask: &Ask<'_>) -> Answer {
        let query = ask.query(with_state!["low", "high", "prefix", "limit"])?;
        let (form, (low, high), mut read) = (ask.form(), query.bounds()?, query.read_options()?);
        let limit = limit(&query)?;
        if read.at.is_none() {
            // All pages are of one version, which is known before the first record.
            let head = self.ledger.head(ask.call(v1::HeadRequest { stale_ok: read.stale_ok })).await?.into_inner();
            (read.at, read.any_epoch) = (head.stamp, false);
        }
        read.want_proof = form == Form::Proof;
        let request = v1::RangeRequest {
            low: low.into(),
            high: high.clone().map(Into::into),
            limit: limit as u32,
            read: Some(read),
            ..v1::RangeRequest::default()
        };
        let messages = self.ledger.range(ask.call(request)).await?.into_inner();
        let page = Page::collect(messages, form).await?;
        let mut response = match form {
            Form::Proof => body::whole(PROOF, page.proof),
            _ => body::whole(LINES, page.lines.freeze()),
        };
        let headers = response.headers_mut();
        if let Some(at) = read.at.filter(|_| !read.any_epoch).or(page.read_at) {
            headers.insert(VERSION, header_value(text_of(at))?);
        }
        if let (true, Some(last)) = (page.more, page.last_key) {
            let high = high.map_or_else(String::new, |high| format!("&high={}", encoded(&high)));
            let version = match read.at {
                Some(at) if read.any_epoch => at.version.to_string(),
                at => at.map_or_else(String::new, text_of),
            };
            let cosigned = if read.cosigned { "&cosigned=true" } else { "" };
            let next = format!(
                "</v1/records?low={}%00{high}&limit={limit}&version={version}{cosigned}>; rel=\"next\"",
                encoded(&last)
            );
            headers.insert(LINK, header_value(next)?);
        }
        Ok(response)
    }

    /// The changes of a key, newest first.
    pub(crate) async fn history(&self, ask: &Ask<'_>, key: Vec<u8>) -> Answer {
        let query = ask.query(with_state!["limit"])?;
        let limit = query.number("limit")?.unwrap_or(0);
        let limit = u32::try_from(limit).map_err(|_| invalid("limit is at most 4294967295"))?;
        let request = v1::HistoryRequest { key: key.into(), limit, read: Some(query.read_options()?) };
        let messages = self.ledger.history(ask.call(request)).await?.into_inner();
        let (mut changes, mut truncated) = (0_u64, false);
        lines_of(messages, move |message: Option<v1::HistoryResponse>, lines| {
            let Some(message) = message else {
                return lines.put(body::line(&json!({ "changes": changes, "truncated": truncated })));
            };
            truncated |= message.truncated;
            if let Some(change) = message.change {
                changes += 1;
                lines.put(body::line(&change_json(&change)));
            }
        })
        .await
    }

    /// The keys whose records differ between two versions.
    pub(crate) async fn diff(&self, ask: &Ask<'_>) -> Answer {
        let query = ask.query(&["from", "to", "low", "high", "prefix"])?;
        let named = |name| query.version(name)?.ok_or_else(|| invalid(format!("{name} is missing")));
        let ((from, any_epoch), (to, any_too)) = (named("from")?, named("to")?);
        if any_epoch != any_too {
            return Err(invalid("from and to name both versions with their epochs, or both without"));
        }
        let (low, high) = query.bounds()?;
        let (low, high) = (low.into(), high.map(Into::into));
        let request = v1::DiffRequest { from: Some(from), to: Some(to), any_epoch, low, high };
        let messages = self.ledger.diff(ask.call(request)).await?.into_inner();
        let mut keys = 0_u64;
        lines_of(messages, move |message: Option<v1::DiffResponse>, lines| {
            let Some(message) = message else { return lines.put(body::line(&json!({ "keys": keys }))) };
            keys += message.differences.len() as u64;
            message.differences.iter().for_each(|difference| lines.put(body::line(&difference_json(difference))));
        })
        .await
    }
}

/// The number of entries that a page may have.
pub(crate) fn limit(query: &Query) -> Result<u64, Status> {
    match query.number("limit")?.unwrap_or(PAGE) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(invalid(format!("limit is from 1 to {PAGE_MAX}"))),
    }
}

/// The lines of a stream. `write` gets each message, and `None` after the last one. A stream that
/// fails before its first message is a refusal with a status code.
async fn lines_of<T: Send + 'static>(
    messages: impl tokio_stream::Stream<Item = Result<T, Status>> + Send + 'static,
    write: impl FnMut(Option<T>, &mut BytesMut) + Send + 'static,
) -> Answer {
    let mut messages = Box::pin(messages);
    let first = messages.next().await.transpose()?;
    let messages = Box::pin(stream::iter(first.map(Ok)).chain(messages));
    let lines = stream::unfold(Some((messages, write)), |state| async move {
        let (mut messages, mut write) = state?;
        let mut lines = BytesMut::new();
        match messages.next().await {
            Some(Ok(message)) => {
                write(Some(message), &mut lines);
                Some((Ok(lines.freeze()), Some((messages, write))))
            }
            Some(Err(failed)) => Some((Err(failed), None)),
            None => {
                write(None, &mut lines);
                Some((Ok(lines.freeze()), None))
            }
        }
    });
    // An empty part would end the answer for some transports.
    let parts = StreamExt::filter(lines, |part| part.as_ref().map_or(true, |part: &Bytes| !part.is_empty()));
    Ok(body::streamed(LINES, parts))
}

fn change_json(change: &v1::Record) -> Value {
    let mut object = Map::from_iter([("found".to_owned(), json!(change.found))]);
    if change.found {
        object.insert("value".to_owned(), bytes_json(&change.value));
    }
    let at = change.last_changed.unwrap_or_default();
    object.insert("epoch".to_owned(), json!(at.epoch));
    object.insert("version".to_owned(), json!(at.version));
    Value::Object(object)
}

fn difference_json(difference: &v1::Difference) -> Value {
    let none = v1::Record::default();
    let before = difference.before.as_ref().unwrap_or(&none);
    let after = difference.after.as_ref().unwrap_or(&none);
    let name = match (before.found, after.found) {
        (false, _) => "added",
        (true, true) => "changed",
        (true, false) => "deleted",
    };
    let key = if after.key.is_empty() { &before.key } else { &after.key };
    let side = |record: &v1::Record| match record.found {
        true => json!({ "value": bytes_json(&record.value), "last_changed": stamp_json(record.last_changed) }),
        false => Value::Null,
    };
    json!({ "change": name, "key": bytes_json(key), "before": side(before), "after": side(after) })
}

/// The records of a page.
#[derive(Debug, Default)]
struct Page {
    lines: BytesMut,
    proof: Bytes,
    read_at: Option<v1::Stamp>,
    last_key: Option<Bytes>,
    /// Whether more records follow.
    more: bool,
}

impl Page {
    /// Reads records until the limit of the request or of a page's bytes. A proof is of all
    /// records up to the limit of the request.
    async fn collect(
        messages: impl tokio_stream::Stream<Item = Result<v1::RangeResponse, Status>>,
        form: Form,
    ) -> Result<Self, Status> {
        let mut messages = std::pin::pin!(messages);
        let (mut page, mut bytes) = (Self::default(), 0);
        while let Some(message) = messages.next().await {
            let message = message?;
            for record in message.records {
                if bytes >= PAGE_BYTES && form != Form::Proof {
                    page.more = true;
                    return Ok(page);
                }
                bytes += record.key.len() + record.value.len();
                if form != Form::Proof {
                    page.lines.put(body::line(&record_json(&record)));
                }
                page.last_key = Some(record.key);
            }
            if let Some(end) = message.end {
                (page.more, page.read_at, page.proof) = (end.more, end.read_at, end.proof);
                return Ok(page);
            }
        }
        Err(missing("end"))
    }
}

/// The conditions of a read: the tags of If-Match and If-None-Match.
struct Conditions {
    matches: Option<String>,
    none_matches: Vec<String>,
    none: bool,
}

impl Conditions {
    fn of(ask: &Ask<'_>) -> Result<Self, Status> {
        let matches = ask.header(&IF_MATCH)?.map(tag).transpose()?.map(|stamp| stamp.to_string());
        let (none, none_matches) = match ask.header(&IF_NONE_MATCH)? {
            None => (false, Vec::new()),
            Some("*") => (true, Vec::new()),
            Some(tags) => {
                let tags = tags.split(',').map(|text| tag(text).map(|stamp| stamp.to_string()));
                (false, tags.collect::<Result<_, Status>>()?)
            }
        };
        Ok(Self { matches, none_matches, none })
    }

    /// Judges the last change of a record; `None` if there is none. Returns whether the caller has
    /// the record already.
    fn judge(&self, changed: Option<&str>) -> Result<bool, Status> {
        if self.matches.as_deref().is_some_and(|wanted| changed != Some(wanted)) {
            let found = changed.map_or_else(|| "it has no record".to_owned(), |changed| format!("it is {changed}"));
            let message = format!("the last change of the key is not the one of If-Match: {found}");
            return Err(status::refuse(Reason::PreconditionFailed, message));
        }
        Ok(changed.is_some_and(|changed| self.none || self.none_matches.iter().any(|tag| tag == changed)))
    }
}
