//! Results of a verification as JSON, in the words of `coppice verify --json`.
//!
//! The command and the WebAssembly module print what this module writes, so that all who check a
//! proof file read the same. Bytes are text if they are UTF-8, else hex with `0x` in front; an
//! [`Encoding`] settles it for all of them.

mod json;

use alloc::string::String;
use core::fmt::Display;

use coppice_types::{Digest, Stamp};

use self::json::Object;
use crate::{
    check::{
        AnchorClaim, Answer, Claim, Failure, IntervalClaim, Journal, JournalsClaim, LineageClaim, ReceiptClaim, Record,
        TimeClaim, Verified,
    },
    checkpoint::Checkpoint,
    evidence::{self, Ground, Signed, Verdict},
    journal::Entry,
    policy::Examined,
};

/// One form for all keys, values and payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8 text. Other bytes can't be reported.
    Utf8,
    /// `0x` and hex digits.
    Hex,
}

/// The object of a file that holds: what is proven, under which checkpoint and keys. `examined` is
/// what the policy says of the checkpoint, if there is one.
///
/// Returns `None` if UTF-8 is asked for and the file has other bytes.
#[must_use]
pub fn proven(verified: &Verified<'_>, examined: Option<&Examined>, encoding: Option<Encoding>) -> Option<String> {
    json::object(encoding, |object| {
        object.flag("valid", true);
        object.null("failed_step");
        match &verified.claim {
            Claim::Query(claim) => put_answer(object, &claim.answer),
            Claim::Receipt(claim) => put_receipt(object, claim),
            Claim::Standing(claim) => {
                object.text("kind", "standing");
                object.number("old_size", claim.old_size);
                object.text("old_root", claim.old_root);
                object.list("epochs", claim.epochs.pairs(), |object, pair| {
                    object.number("epoch", pair.epoch.0);
                    object.number("base", pair.base.0);
                });
            }
            Claim::Journals(claim) => put_journals(object, claim),
            Claim::Time(claim) => put_time(object, claim),
            Claim::Lineage(claim) => put_lineage(object, claim),
            Claim::Interval(claim) => put_interval(object, claim),
        }
        put_log(object, verified);
        match examined {
            None => object.null("cosignatures"),
            Some(examined) => object.list("cosignatures", &examined.cosignatures, |object, cosigned| {
                object.text("witness", String::from_utf8_lossy(&cosigned.witness));
                object.text("key_name", &cosigned.key_name);
                object.number("time", cosigned.time);
            }),
        }
    })
}

/// The object of a file that does not hold, or that answers another question.
#[must_use]
pub fn refused(failure: &Failure) -> String {
    put_refusal(failure.step, failure)
}

/// The object of an evidence file that proves nothing.
#[must_use]
pub fn no_evidence(failure: &evidence::Failure) -> String {
    put_refusal(failure.step, failure)
}

fn put_refusal(step: impl Display, error: impl Display) -> String {
    words(|object| {
        object.flag("valid", false);
        object.text("failed_step", step);
        object.text("error", error);
    })
}

/// The object of an evidence file that holds: the two notes, and the keys that signed them.
#[must_use]
pub fn evidence(verdict: &Verdict) -> String {
    words(|object| {
        object.flag("valid", true);
        object.null("failed_step");
        object.text("kind", verdict.ground.name());
        object.text("origin", &verdict.a.checkpoint.origin);
        object.object("a", |object| put_signed(object, &verdict.a));
        object.object("b", |object| put_signed(object, &verdict.b));
        object.flag("one_key", verdict.is_one_key());
        match &verdict.ground {
            Ground::Contradiction { root } => object.text("root_in_b", root),
            Ground::Late { index, new } => {
                object.number("index", *index);
                object.text("replaced_by", new);
            }
        }
        object.list("cosigners", &verdict.cosigners, |object, cosigner| {
            object.text("witness", String::from_utf8_lossy(&cosigner.a.witness));
            object.text("key_name", &cosigner.a.key_name);
            object.number("time_a", cosigner.a.time);
            object.number("time_b", cosigner.b.time);
        });
        object.list("unknown_cosigners", &verdict.unknown, |object, line| {
            object.text("key_name", &line.key_name);
            object.text("key_id", format_args!("{:08x}", u32::from_be_bytes(line.key_id)));
        });
    })
}

fn put_signed(object: &mut Object<'_>, signed: &Signed) {
    object.number("size", signed.checkpoint.size);
    object.text("root", signed.checkpoint.root);
    object.text("signed_by", &signed.key);
}

/// The object of a call that makes no sense, so that no file was judged.
#[must_use]
pub fn misused(message: &str) -> String {
    words(|object| object.object("error", |object| object.text("message", message)))
}

fn words(fill: impl FnOnce(&mut Object<'_>)) -> String {
    json::object(None, fill).expect("without an encoding, all bytes can be written")
}

/// Version, checkpoint and keys.
fn put_log(object: &mut Object<'_>, verified: &Verified<'_>) {
    let header = verified.header().unwrap_or(&verified.newest);
    put_stamp(object, header.stamp);
    object.number("timestamp_ms", header.timestamp_ms);
    object.text("state_root", header.state_root);
    object.text("cluster_id", verified.cluster);
    object.object("newest", |object| put_stamp(object, verified.newest.stamp));
    object.object("checkpoint", |object| put_checkpoint(object, &verified.checkpoint));
    object.text("signed_by", verified.keys.in_force(verified.checkpoint.size));
    object.list("key_changes", verified.keys.changes(), |object, (at, key)| {
        object.number("sequence", at.0);
        object.text("vkey", key);
    });
    object.optional("newer_checkpoint", verified.newer.as_ref(), put_checkpoint);
}

fn put_stamp(object: &mut Object<'_>, stamp: Stamp) {
    object.number("epoch", stamp.epoch.0);
    object.number("version", stamp.version.0);
}

fn put_checkpoint(object: &mut Object<'_>, checkpoint: &Checkpoint) {
    object.text("origin", &checkpoint.origin);
    object.number("size", checkpoint.size);
    object.text("root", checkpoint.root);
}

fn put_answer(object: &mut Object<'_>, answer: &Answer<'_>) {
    match answer {
        Answer::Keys(keys) => {
            if let [(key, record)] = keys.as_slice() {
                object.text("kind", if record.is_some() { "membership" } else { "absence" });
                return put_key(object, key, record.as_ref());
            }
            object.text("kind", "keys");
            object.flag("found", keys.iter().any(|(_, record)| record.is_some()));
            object.list("keys", keys, |object, (key, record)| put_key(object, key, record.as_ref()));
        }
        Answer::Range { low, high, records } => {
            object.text("kind", "range");
            object.flag("found", !records.is_empty());
            let encoding = object.bytes("low", low);
            object.text("low_encoding", encoding);
            match high {
                Some(high) => {
                    let encoding = object.bytes("high", high);
                    object.text("high_encoding", encoding);
                }
                None => object.null("high"),
            }
            object.list("records", records, |object, record| put_key(object, &record.key, Some(record)));
        }
    }
}

/// A key with its record, if there is one. `encoding` is that of the value if it is shown, else
/// that of the key.
fn put_key(object: &mut Object<'_>, key: &[u8], record: Option<&Record<'_>>) {
    object.flag("found", record.is_some());
    let mut encoding = object.bytes("key", key);
    object.text("key_encoding", encoding);
    match record {
        Some(record) => {
            object.text("value_sha256", record.value_hash);
            object.number("value_bytes", record.value_len);
            if let Some(value) = &record.value {
                encoding = object.bytes("value", value);
            }
            object.object("last_changed", |object| put_stamp(object, record.stamp));
        }
        None => object.null("value_sha256"),
    }
    object.text("encoding", encoding);
}

fn put_receipt(object: &mut Object<'_>, claim: &ReceiptClaim) {
    object.text("kind", "receipt");
    object.number("journal_index", claim.index);
    object.text("entry_hash", Entry::Batch(claim.batch.clone()).hash());
    object.optional("session", claim.batch.session, |object, (id, number)| {
        object.text("id", id);
        object.number("number", number);
    });
    object.text("metadata_hash", claim.batch.metadata);
    object.list("shards", &claim.batch.shards, |object, (shard, hash)| {
        object.number("shard", shard.0);
        object.text("operations_hash", hash);
    });
    object.text("shard_map_hash", claim.header.shard_map);
}

/// The version and its own time follow, as for every kind.
fn put_time(object: &mut Object<'_>, claim: &TimeClaim) {
    object.text("kind", "time");
    object.number("time_ms", claim.time_ms);
    object.flag("final", claim.is_final());
    object.optional("next", claim.next, |object, (stamp, timestamp_ms)| {
        put_stamp(object, stamp);
        object.number("timestamp_ms", timestamp_ms);
    });
}

fn put_journals(object: &mut Object<'_>, claim: &JournalsClaim) {
    object.text("kind", "journals");
    object.text("ledger", claim.ledger);
    object.number("ledger_size", claim.size);
    object.text("ledger_root", claim.root);
    object.optional("known", claim.known, |object, (size, root)| {
        object.number("size", size);
        object.text("root", root);
    });
    object.list("journals", &claim.journals, put_journal);
}

fn put_lineage(object: &mut Object<'_>, claim: &LineageClaim) {
    object.text("kind", "lineage");
    object.text("ledger", claim.ledger);
    object.text("clue_hash", claim.clue);
    object.number("count", claim.count);
    object.flag("complete", claim.after == 0);
    object.list("journals", &claim.journals, put_journal);
}

/// The anchors with their tokens, which are not judged here.
fn put_interval(object: &mut Object<'_>, claim: &IntervalClaim) {
    object.text("kind", "interval");
    object.number("sequence", claim.header.sequence.0);
    object.list("below", &claim.below, put_anchor);
    object.list("above", &claim.above, put_anchor);
}

fn put_anchor(object: &mut Object<'_>, anchor: &AnchorClaim) {
    object.number("sequence", anchor.sequence.0);
    object.number("timestamp_ms", anchor.timestamp_ms);
    object.number("stamped_size", anchor.stamps.size);
    object.text("stamped_root", anchor.stamps.root);
    object.text("imprint", anchor.imprint);
    object.list("tokens", &anchor.stamps.tokens, |object, token| {
        object.number("type", token.kind);
        object.number("chain", token.chain);
        object.number("bytes", token.bytes.len() as u64);
    });
}

fn put_journal(object: &mut Object<'_>, journal: &Journal) {
    let leaf = &journal.leaf;
    object.number("jsn", leaf.jsn);
    object.number("kind", leaf.kind);
    object.text("member_id", leaf.member);
    match leaf.agent {
        Some(agent) => object.text("agent_id", agent),
        None => object.null("agent_id"),
    }
    object.text("public_key", Digest(leaf.key));
    object.flag("signature_verified", journal.signed.is_some());
    object.number("lane", leaf.lane);
    object.number("number", leaf.number);
    put_stamp(object, leaf.stamp);
    object.text("leaf_hash", leaf.hash());
    object.text("request_hash", leaf.request);
    object.list("clues", &leaf.clues, |object, clue| {
        object.text("hash", clue.clue);
        object.number("ordinal", clue.ordinal);
    });
    if let Some(envelope) = &journal.envelope {
        let encoding = object.bytes("payload", &envelope.payload);
        object.text("encoding", encoding);
    }
}

#[cfg(test)]
mod tests;
