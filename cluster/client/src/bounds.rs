//! Bounds on what a server may send as one answer, checked before the answer is decoded.
//!
//! A message with many empty parts takes few bytes on the wire, and a hundred times as many in
//! memory. So the parts are counted as the bytes arrive. A message with more parts or bytes than
//! any ledger sends ends its call.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use coppice_proto::{Channel, HttpRequest, HttpResponse};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tower::ServiceExt;

/// Largest answer that is accepted, in bytes: a proof file may have 64 MiB, and a message has a
/// little more.
pub(crate) const ANSWER_BYTES_MAX: usize = 96 << 20;
/// Most bytes of keys and values that [`Client::range_all`](crate::Client::range_all) collects: 128
/// MiB, more than a proof can hold.
pub const RANGE_BYTES_MAX: usize = 128 << 20;
/// Largest answer to a call that has short answers, and to one that lists all replicas.
const SHORT_BYTES_MAX: usize = 1 << 20;
const LIST_BYTES_MAX: usize = 2 << 20;
/// Most fields of one message: records, entries of a journal, replicas.
const FIELDS_MAX: u32 = 1 << 17;

/// Wraps a channel so that its answers are checked against these bounds.
pub(crate) fn bounded(channel: Channel) -> Channel {
    Channel::new(tower::service_fn(move |request: HttpRequest| {
        let bytes_max = bytes_max(request.uri().path());
        let channel = channel.clone();
        async move {
            let answer: HttpResponse = channel.oneshot(request).await?;
            Ok::<_, tonic::codegen::StdError>(answer.map(|body| tonic::body::Body::new(Bounded::new(body, bytes_max))))
        }
    }))
}

/// Largest answer of a method, by its path.
fn bytes_max(path: &str) -> usize {
    match path.rsplit('/').next().unwrap_or_default() {
        "Head" | "GetHeader" | "OpenSession" | "Stage" | "Discard" | "Pin" | "Unpin" | "TransferLeader" => {
            SHORT_BYTES_MAX
        }
        "Anchor" | "Prune" | "Rollback" | "RotateKey" | "Status" | "ListPins" => LIST_BYTES_MAX,
        _ => ANSWER_BYTES_MAX,
    }
}

struct Bounded {
    inner: tonic::body::Body,
    walk: Walk,
}

impl Bounded {
    fn new(inner: tonic::body::Body, bytes_max: usize) -> Self {
        Self { inner, walk: Walk { bytes_max, at: At::Prefix([0; 5], 0), left: 0, fields: 0 } }
    }
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(cx)).transpose()? else {
            return Poll::Ready(None);
        };
        if let Some(data) = frame.data_ref() {
            this.walk
                .take(data)
                .map_err(|what| Status::data_loss(format!("the server's answer makes no sense: {what}")))?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Where the next byte of a stream of messages belongs.
#[derive(Clone, Copy, Debug)]
enum At {
    /// In the five bytes before a message; the number says how many have come.
    Prefix([u8; 5], usize),
    /// In the tag of a field.
    Tag(Varint),
    /// In a number.
    Number,
    /// In the length of a field.
    Length(Varint),
    /// In a field with this many bytes left.
    Field(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

impl Varint {
    /// Takes a byte. Returns the number when its last byte has come.
    fn take(&mut self, byte: u8) -> Result<Option<u64>, &'static str> {
        if self.bits > 63 {
            return Err("a number that is too long");
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }
}

/// Counts the fields of messages as their bytes arrive.
#[derive(Debug)]
struct Walk {
    bytes_max: usize,
    at: At,
    /// Bytes of the message that have not come yet.
    left: usize,
    fields: u32,
}

impl Walk {
    fn take(&mut self, mut data: &[u8]) -> Result<(), &'static str> {
        while !data.is_empty() {
            let taken = match &mut self.at {
                At::Prefix(prefix, filled) => {
                    let taken = data.len().min(prefix.len() - *filled);
                    prefix[*filled..*filled + taken].copy_from_slice(&data[..taken]);
                    *filled += taken;
                    if *filled == prefix.len() {
                        let prefix = *prefix;
                        self.begin(prefix)?;
                    }
                    data = &data[taken..];
                    continue;
                }
                At::Field(left) => {
                    let taken = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX)).min(self.left);
                    *left -= taken as u64;
                    taken
                }
                _ => 1,
            };
            self.at = self.after(data[0])?;
            self.left -= taken;
            data = &data[taken..];
            if self.left == 0 {
                self.at = At::Prefix([0; 5], 0);
            }
        }
        Ok(())
    }

    fn begin(&mut self, prefix: [u8; 5]) -> Result<(), &'static str> {
        let [compressed, length @ ..] = prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err("it is compressed, which was not asked for");
        }
        if length > self.bytes_max {
            return Err("a message is longer than any that a ledger sends");
        }
        (self.left, self.fields) = (length, 0);
        self.at = if length == 0 { At::Prefix([0; 5], 0) } else { At::Tag(Varint::default()) };
        Ok(())
    }

    /// Where the byte after this one belongs. The length of a field has been counted down before.
    fn after(&mut self, byte: u8) -> Result<At, &'static str> {
        let next = At::Tag(Varint::default());
        Ok(match self.at {
            At::Field(0) => next,
            At::Field(_) | At::Prefix(..) => self.at,
            At::Number if byte & 0x80 == 0 => next,
            At::Number => At::Number,
            At::Length(mut length) => match length.take(byte)? {
                Some(0) => next,
                Some(length) => At::Field(length),
                None => At::Length(length),
            },
            At::Tag(mut tag) => match tag.take(byte)? {
                Some(tag) => self.field(tag)?,
                None => At::Tag(tag),
            },
        })
    }

    fn field(&mut self, tag: u64) -> Result<At, &'static str> {
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err("a message has more parts than any that a ledger sends");
        }
        match tag & 7 {
            0 => Ok(At::Number),
            1 => Ok(At::Field(8)),
            2 => Ok(At::Length(Varint::default())),
            5 => Ok(At::Field(4)),
            _ => Err("a field of an unknown kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_proto::v1;
    use prost::Message;

    use super::*;

    fn framed(message: &impl Message) -> Vec<u8> {
        let body = message.encode_to_vec();
        let length = u32::try_from(body.len()).expect("tests send little");
        [&[0], &length.to_be_bytes()[..], &body].concat()
    }

    fn walk(data: &[u8], piece: usize) -> Result<(), &'static str> {
        let mut walk = Bounded::new(tonic::body::Body::empty(), ANSWER_BYTES_MAX).walk;
        data.chunks(piece).try_for_each(|piece| walk.take(piece))?;
        assert!(matches!(walk.at, At::Prefix(_, 0)), "it ends with a message: {walk:?}");
        Ok(())
    }

    fn records(count: usize, value: &[u8]) -> v1::RangeResponse {
        let record =
            v1::Record { key: b"key".to_vec().into(), found: true, value: value.to_vec().into(), ..Default::default() };
        v1::RangeResponse { records: vec![record; count], end: Some(v1::RangeEnd { more: true, ..Default::default() }) }
    }

    #[test]
    fn messages_of_a_ledger_pass_however_their_bytes_arrive() {
        let head = v1::HeadResponse { log_size: u64::MAX, timestamp_ms: 1 << 40, ..Default::default() };
        let status = v1::GroupStatus { voters: vec![1, u64::MAX, 300], ..Default::default() };
        let stream = [
            framed(&records(3, &[7; 300])),
            framed(&records(0, b"")),
            framed(&v1::RangeResponse::default()),
            framed(&head),
            framed(&v1::StatusResponse { groups: vec![status; 3], ..Default::default() }),
            framed(&records(FIELDS_MAX as usize - 1, b"")),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 64, 1000, stream.len()] {
            assert_eq!(walk(&stream, piece), Ok(()), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_message_of_too_many_parts_or_bytes_ends_its_call() {
        let too_many =
            framed(&v1::RangeResponse { records: vec![v1::Record::default(); FIELDS_MAX as usize + 1], end: None });
        for piece in [1, 4096] {
            assert_eq!(walk(&too_many, piece), Err("a message has more parts than any that a ledger sends"));
        }
        let mut long = u32::try_from(ANSWER_BYTES_MAX + 1).expect("it fits").to_be_bytes().to_vec();
        long.insert(0, 0);
        assert_eq!(walk(&long, 5), Err("a message is longer than any that a ledger sends"));
        assert_eq!(walk(&[1, 0, 0, 0, 1, 0], 6), Err("it is compressed, which was not asked for"));
        assert_eq!(walk(&[0, 0, 0, 0, 2, 0x0b, 0], 7), Err("a field of an unknown kind"));
        assert_eq!(walk(&[&[0, 0, 0, 0, 12][..], &[0xff; 12]].concat(), 17), Err("a number that is too long"));
        assert!(bytes_max("/coppice.v1.Ledger/Status") < bytes_max("/coppice.v1.Ledger/BatchGet"));
    }
}
