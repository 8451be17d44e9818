//! The root log: head, entries, checkpoints, and the state of the cluster.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header::LINK};
use bytes::{BufMut, Bytes, BytesMut};
use coppice_proto::v1::{self, ledger_server::Ledger};
use coppice_verify::header::Header;
use futures::stream;
use serde_json::Value;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;

use crate::{
    api::{Answer, Api},
    ask::{Ask, Form, PROOF, invalid, text_of},
    body::{self, EVENTS, LINES, TEXT, VERSION},
    forms::{checkpoint_json, head_json, header_json, status_json},
    reads::limit,
};

/// Bytes of lines after which a page ends.
const PAGE_BYTES: usize = 256 << 10;
/// How long a stream of events stays silent before it shows that it is alive.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The number of the last event that a client has seen.
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

fn header(bytes: &[u8]) -> Result<Header, Status> {
    Header::decode(bytes).map_err(|_| Status::internal("an entry of the root log can't be read"))
}

impl<L: Ledger> Api<L> {
    pub(crate) async fn head(&self, ask: &Ask<'_>) -> Answer {
        let stale_ok = ask.query(&["stale"])?.flag("stale")?;
        let head = self.ledger.head(ask.call(v1::HeadRequest { stale_ok })).await?.into_inner();
        let object = head_json(&head).ok_or_else(|| Status::internal("the head has no version"))?;
        let mut answer = body::json(&object);
        if let Some(Ok(version)) = head.stamp.map(|stamp| HeaderValue::try_from(text_of(stamp))) {
            answer.headers_mut().insert(VERSION, version);
        }
        Ok(answer)
    }

    pub(crate) async fn status(&self, ask: &Ask<'_>) -> Answer {
        ask.query(&[])?;
        let status = self.ledger.status(ask.call(v1::StatusRequest {})).await?.into_inner();
        Ok(body::json(&status_json(&status)))
    }

    /// The newest signed checkpoint. Its proof file shows that the log only grew since a size.
    pub(crate) async fn checkpoint(&self, ask: &Ask<'_>) -> Answer {
        let query = ask.query(&["since", "cosigned"])?;
        let (old_size, cosigned, form) = (query.number("since")?, query.flag("cosigned")?, ask.form());
        if form == Form::Proof && old_size.unwrap_or(0) == 0 {
            return Err(invalid("a proof needs since=SIZE, the size of an earlier checkpoint"));
        }
        // Without a proof, nothing is said about an earlier size.
        let old_size = if form == Form::Proof { old_size.unwrap_or(0) } else { 0 };
        let request = v1::GetCheckpointRequest { old_size, cosigned };
        let answer = self.ledger.get_checkpoint(ask.call(request)).await?.into_inner();
        Ok(match form {
            Form::Proof => body::whole(PROOF, answer.standing),
            Form::Plain => body::whole(TEXT, answer.checkpoint),
            Form::Json => {
                let object = checkpoint_json(&answer.checkpoint);
                body::json(&object.ok_or_else(|| Status::internal("the checkpoint is not text"))?)
            }
        })
    }

    /// A page of entries.
    pub(crate) async fn log(&self, ask: &Ask<'_>) -> Answer {
        let query = ask.query(&["from", "limit"])?;
        let (from, limit) = (query.number("from")?.unwrap_or(0), limit(&query)?);
        let request = v1::WatchHeadsRequest { from_sequence: from, ..v1::WatchHeadsRequest::default() };
        let mut entries = std::pin::pin!(self.ledger.watch_heads(ask.call(request)).await?.into_inner());
        let (mut lines, mut count, mut more) = (BytesMut::new(), 0, false);
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            if count == limit || lines.len() >= PAGE_BYTES {
                more = true;
                break;
            }
            lines.put(body::line(&header_json(&header(&entry.header)?)));
            count += 1;
        }
        let mut answer = body::whole(LINES, lines.freeze());
        let next = format!("</v1/log?from={}&limit={limit}>; rel=\"next\"", from.saturating_add(count));
        if let (true, Ok(next)) = (more, HeaderValue::try_from(next)) {
            answer.headers_mut().insert(LINK, next);
        }
        Ok(answer)
    }

    /// Entries as they come, as server-sent events.
    pub(crate) async fn watch(&self, ask: &Ask<'_>) -> Answer {
        let from = ask.query(&["from"])?.number("from")?;
        let seen = ask.header(&LAST_EVENT)?.map(|seen| {
            let number = seen.parse::<u64>().ok().filter(|_| seen.bytes().all(|byte| byte.is_ascii_digit()));
            number.ok_or_else(|| invalid("Last-Event-ID is the number of an entry"))
        });
        let from_sequence = match (seen.transpose()?, from) {
            (Some(seen), _) => seen.saturating_add(1),
            (None, Some(from)) => from,
            (None, None) => self.ledger.head(ask.call(v1::HeadRequest::default())).await?.into_inner().log_size,
        };
        let request = v1::WatchHeadsRequest { from_sequence, follow: true, ..v1::WatchHeadsRequest::default() };
        let entries = Box::pin(self.ledger.watch_heads(ask.call(request)).await?.into_inner());
        let events = stream::unfold(Some(entries), |entries| async move {
            let mut entries = entries?;
            match timeout(SILENCE_MAX, entries.next()).await {
                Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), Some(entries))),
                Ok(Some(Ok(entry))) => match header(&entry.header) {
                    Ok(header) => Some((Ok(event(&header)), Some(entries))),
                    Err(failed) => Some((Err(failed), None)),
                },
                Ok(Some(Err(failed))) => Some((Err(failed), None)),
                Ok(None) => None,
            }
        });
        Ok(body::streamed(EVENTS, events))
    }
}

/// An entry as an event. JSON has no line breaks of its own.
fn event(header: &Header) -> Bytes {
    let (kind, object): (_, Value) = (header.kind_name(), header_json(header));
    format!("id: {}\nevent: {kind}\ndata: {object}\n\n", header.sequence).into()
}
