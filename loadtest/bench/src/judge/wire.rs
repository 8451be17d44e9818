//! The posts: questions and answers of the API in protobuf's JSON, with only the fields that proofs
//! cover.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use coppice_proto::v1::{self, operation::Change};
use serde::{Deserialize, Deserializer, de::Error};

/// Bytes in base64.
#[derive(Debug, Default)]
pub struct Base64(pub Bytes);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom)
    }
}

/// A 64-bit number as text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map(Self).map_err(D::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
struct Stamp {
    epoch: Number,
    version: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Read {
    at: Option<Stamp>,
    any_epoch: bool,
    stale_ok: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    key: Base64,
    found: bool,
    value: Base64,
    last_changed: Option<Stamp>,
}

/// A read of keys.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    keys: Vec<Base64>,
    #[serde(default)]
    read: Read,
    records: Vec<Record>,
    read_at: Option<Stamp>,
    proof: Base64,
}

/// A read of a range.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    low: Base64,
    high: Option<Base64>,
    limit: u32,
    #[serde(default)]
    read: Read,
    records: Vec<Record>,
    more: bool,
    read_at: Option<Stamp>,
    proof: Base64,
}

#[derive(Debug, Deserialize)]
struct Operation {
    key: Base64,
    put: Option<Base64>,
}

/// A commit. Fields that leave no trace in the ledger, for instance preconditions, are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    pub genesis: Base64,
    session_id: Base64,
    number: Number,
    operations: Vec<Operation>,
    #[serde(default)]
    metadata: Base64,
    stamp: Option<Stamp>,
    header: Base64,
    receipt: Base64,
}

impl From<Stamp> for v1::Stamp {
    fn from(it: Stamp) -> Self {
        Self { epoch: it.epoch.0, version: it.version.0 }
    }
}

impl From<Read> for v1::ReadOptions {
    fn from(Read { at, any_epoch, stale_ok }: Read) -> Self {
        Self { at: at.map(Into::into), any_epoch, want_proof: true, stale_ok, ..Self::default() }
    }
}

impl From<Record> for v1::Record {
    fn from(Record { key, found, value, last_changed }: Record) -> Self {
        Self { key: key.0, found, value: value.0, last_changed: last_changed.map(Into::into) }
    }
}

fn records(list: Vec<Record>) -> Vec<v1::Record> {
    list.into_iter().map(Into::into).collect()
}

impl From<Keys> for (v1::BatchGetRequest, v1::BatchGetResponse) {
    fn from(it: Keys) -> Self {
        let keys = it.keys.into_iter().map(|key| key.0).collect();
        let read_at = it.read_at.map(Into::into);
        (
            v1::BatchGetRequest { keys, read: Some(it.read.into()) },
            v1::BatchGetResponse { records: records(it.records), read_at, proof: it.proof.0 },
        )
    }
}

impl From<Range> for (v1::RangeRequest, Vec<v1::Record>, v1::RangeEnd) {
    fn from(it: Range) -> Self {
        let (high, read) = (it.high.map(|high| high.0), Some(it.read.into()));
        (
            v1::RangeRequest { low: it.low.0, high, limit: it.limit, read, without_values: false, reverse: false },
            records(it.records),
            v1::RangeEnd { read_at: it.read_at.map(Into::into), more: it.more, proof: it.proof.0 },
        )
    }
}

impl From<Commit> for (v1::CommitRequest, v1::CommitResponse) {
    fn from(it: Commit) -> Self {
        let operation = |it: Operation| v1::Operation {
            key: it.key.0,
            change: Some(it.put.map_or(Change::Delete(true), |value| Change::Put(value.0))),
        };
        let operations = it.operations.into_iter().map(operation).collect();
        let batch = v1::Batch { operations, metadata: it.metadata.0, ..v1::Batch::default() };
        let (session_id, number) = (it.session_id.0, it.number.0);
        (
            v1::CommitRequest { batch: Some(batch), session_id, number, want_receipt: true },
            v1::CommitResponse {
                stamp: it.stamp.map(Into::into),
                header: it.header.0,
                receipt: it.receipt.0,
                ..v1::CommitResponse::default()
            },
        )
    }
}
