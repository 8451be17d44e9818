//! The JSON forms of answers, which the command line prints, too.

use coppice_proto::v1;
use coppice_timestamp::{Token, claimed_signer};
use coppice_verify::{
    anchor::{self, Anchor, RFC_3161, Stamps, TIME_LEDGER},
    checkpoint,
    header::{Body, Header},
    proof::{Proof, ProofFile},
};
use serde_json::{Value, json};

/// The newest version; `None` if the answer names none.
#[must_use]
pub fn head_json(head: &v1::HeadResponse) -> Option<Value> {
    let stamp = head.stamp?;
    Some(json!({
        "cluster_id": hex::encode(&head.cluster_id),
        "epoch": stamp.epoch,
        "version": stamp.version,
        "state_root": hex::encode(&head.state_root),
        "log_size": head.log_size,
        "timestamp_ms": head.timestamp_ms,
        "pruned_boundary": head.pruned_boundary,
    }))
}

/// The state of the cluster.
#[must_use]
pub fn status_json(status: &v1::StatusResponse) -> Value {
    let groups: Vec<Value> = status.groups.iter().map(group_json).collect();
    json!({
        "cluster_id": hex::encode(&status.cluster_id),
        "origin": status.origin,
        "vkey": status.vkey,
        "epoch": status.head.map(|head| head.epoch),
        "version": status.head.map(|head| head.version),
        "pruned_boundary": status.head.map(|_| status.pruned_boundary),
        "term": status.term,
        "leader": status.leader,
        "groups": groups,
        "unreachable": status.unreachable,
        "without_majority": without_majority(status),
    })
}

/// The groups of which too few voters answered.
#[must_use]
pub fn without_majority(status: &v1::StatusResponse) -> Vec<&str> {
    status.groups.iter().filter(|group| !has_majority(group)).map(|group| group.group.as_str()).collect()
}

/// A signed checkpoint; `None` if it is not text.
#[must_use]
pub fn checkpoint_json(checkpoint: &[u8]) -> Option<Value> {
    let note = std::str::from_utf8(checkpoint).ok()?;
    let mut lines = note.lines();
    Some(json!({
        "origin": lines.next(),
        "size": lines.next().and_then(|size| size.parse::<u64>().ok()),
        "root": lines.next(),
        "note": note,
    }))
}

/// What a commit has done. `header` is that of its version.
#[must_use]
pub fn commit_json(stamp: v1::Stamp, header: &Header, done: &v1::CommitResponse) -> Value {
    json!({
        "epoch": stamp.epoch,
        "version": stamp.version,
        "sequence": header.sequence.0,
        "state_root": header.state_root.to_string(),
        "journal_index": done.journal_index,
    })
}

/// A header as JSON, made from its bytes alone.
#[must_use]
pub fn header_json(header: &Header) -> Value {
    let mut object = json!({
        "cluster_id": header.cluster.to_string(),
        "sequence": header.sequence.0,
        "kind": header.kind_name(),
        "epoch": header.stamp.epoch.0,
        "version": header.stamp.version.0,
        "timestamp_ms": header.timestamp_ms,
        "state_root": header.state_root.to_string(),
        "state_leaves": header.state_leaves,
        "shard_map_hash": header.shard_map.to_string(),
        "journal_root": header.journal_root.to_string(),
        "journal_count": header.journal_leaves,
        "epochs_root": header.epochs_root.to_string(),
        "epoch_pairs": header.epoch_pairs,
        "admin_sequence": header.admin_sequence,
        "key_changes": header.key_changes,
        "previous": header.previous.to_string(),
        "entry_hash": header.hash().to_string(),
    });
    let body = match &header.body {
        Body::Genesis(genesis) => Some(("genesis", genesis_json(genesis))),
        Body::Rollback(rollback) => Some((
            "rollback",
            json!({
                "target": stamp_json(rollback.target),
                "head_before": stamp_json(rollback.head_before),
                "principal": rollback.principal,
                "reason": rollback.reason,
            }),
        )),
        Body::Prune(prune) => Some((
            "prune",
            json!({
                "boundary": prune.boundary.0,
                "principal": prune.principal,
                "reason": prune.reason,
            }),
        )),
        Body::Key(change) => Some((
            "key",
            json!({
                "number": change.number,
                "old": hex::encode(change.old),
                "new": hex::encode(change.new),
                "principal": change.principal,
                "reason": change.reason,
            }),
        )),
        Body::Anchor(Anchor::Stamps(stamps)) => Some(("anchor", anchor_json(header, stamps))),
        Body::Anchor(Anchor::Chain(certificates)) => {
            Some(("anchor", json!({ "certificates": certificates.iter().map(hex::encode).collect::<Vec<_>>() })))
        }
        Body::Commit | Body::Other { .. } => None,
    };
    if let (Some((name, body)), Value::Object(fields)) = (body, &mut object) {
        fields.insert(name.to_owned(), body);
    }
    object
}

fn stamp_json(stamp: coppice_types::Stamp) -> Value {
    json!({ "epoch": stamp.epoch.0, "version": stamp.version.0 })
}

fn genesis_json(genesis: &coppice_verify::header::Genesis) -> Value {
    let params = &genesis.params;
    let shards: Vec<Value> = genesis
        .shard_map
        .shards()
        .iter()
        .map(|shard| {
            json!({
                "shard": shard.id.0,
                "low": format!("0x{}", hex::encode(&shard.low)),
                "high": shard.high.as_ref().map(|high| format!("0x{}", hex::encode(high))),
            })
        })
        .collect();
    json!({
        "origin_prefix": genesis.prefix,
        "public_key": hex::encode(genesis.public_key),
        "key_bytes_max": params.key_bytes_max,
        "value_bytes_max": params.value_bytes_max,
        "batch_bytes_max": params.batch_bytes_max,
        "message_bytes_max": params.message_bytes_max,
        "session_window": params.session_window,
        "capacity": params.capacity,
        "fanout": params.fanout,
        "node_bytes": params.node_bytes,
        "inline_bytes": params.inline_bytes,
        "filter_bits": params.filter_bits,
        "tree_limit": params.tree_limit,
        "tier_ratio": params.tier_ratio,
        "journals_kept": params.journals_kept,
        "ledgers": params.ledgers,
        "protocol_version": params.protocol_version(),
        "shards": shards,
    })
}

/// The header that a receipt names, and the origin of its log. Nothing is verified.
#[must_use]
pub fn receipt(file: &[u8]) -> Option<(Header, String)> {
    let Proof::Receipt(receipt) = ProofFile::decode(file).ok()?.proof else { return None };
    let checkpoint = checkpoint::Checkpoint::claimed(&receipt.log.checkpoint).ok()?;
    Some((Header::decode(&receipt.header.header).ok()?, checkpoint.origin))
}

/// An anchor as an object. Its times are claims of its tokens.
#[must_use]
pub fn anchor_json(header: &Header, stamps: &Stamps) -> Value {
    let token = |token: &anchor::Token| match Token::parse(&token.bytes) {
        Ok(parsed) if token.kind == RFC_3161 => json!({
            "type": token.kind,
            "time": parsed.info().time.to_string(),
            "accuracy_s": parsed.info().accuracy.map(|accuracy| accuracy.nanoseconds() as f64 / 1e9),
            "policy": parsed.info().policy.to_string(),
            "authority": claimed_signer(&parsed),
            "bytes": token.bytes.len(),
        }),
        _ if token.kind == TIME_LEDGER => {
            let place = receipt(&token.bytes);
            json!({
                "type": token.kind,
                "authority": place.as_ref().map(|(_, origin)| origin),
                "version": place.as_ref().map(|(header, _)| header.stamp.version.0),
                "bytes": token.bytes.len(),
            })
        }
        _ => json!({ "type": token.kind, "bytes": token.bytes.len() }),
    };
    json!({
        "sequence": header.sequence.0,
        "stamped_size": stamps.size,
        "stamped_root": stamps.root.to_string(),
        "timestamp_ms": header.timestamp_ms,
        "tokens": stamps.tokens.iter().map(token).collect::<Vec<Value>>(),
    })
}

fn group_json(group: &v1::GroupStatus) -> Value {
    let replicas: Vec<Value> = group
        .replicas
        .iter()
        .map(|replica| {
            json!({
                "raft_id": replica.raft_id,
                "node": replica.node,
                "role": replica.role,
                "applied": replica.applied,
                "bytes_on_disk": replica.bytes_on_disk,
                "note": replica.note,
            })
        })
        .collect();
    json!({
        "group": group.group,
        "low": format!("0x{}", hex::encode(&group.low)),
        "high": group.high.as_ref().map(|high| format!("0x{}", hex::encode(high))),
        "shard_version": group.shard_version,
        "digest": hex::encode(&group.digest),
        "entries": group.entries,
        "trees": group.trees,
        "voters": group.voters,
        "learners": group.learners,
        "replicas": replicas,
    })
}

/// Whether enough voters answered for the group to decide.
#[must_use]
pub fn has_majority(group: &v1::GroupStatus) -> bool {
    let answers = |id: &&u64| group.replicas.iter().any(|it| it.raft_id == **id && it.role != "stopped");
    group.voters.iter().filter(answers).count() > group.voters.len() / 2
}
