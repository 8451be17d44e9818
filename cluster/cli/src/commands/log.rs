//! What the root log says: `head`, `header`, `checkpoint`, `log`, `status`.

use std::fs;

use coppice_client::{Client, Error};
use coppice_proto::v1::{self, get_header_request::Which};
use coppice_verify::{
    header::{Body, Header},
    proof::ProofFile,
};
use serde_json::{Value, json};

use crate::{args, failure::Failure, output::Output};

/// `coppice head`.
///
/// # Errors
/// If there is no answer.
pub async fn head(client: &Client, output: Output) -> Result<(), Failure> {
    let head = client.head().await?;
    let stamp = head.stamp.ok_or(Error::Malformed("no head"))?;
    let (cluster, root) = (hex::encode(&head.cluster_id), hex::encode(&head.state_root));
    let object = json!({
        "cluster_id": cluster,
        "epoch": stamp.epoch,
        "version": stamp.version,
        "state_root": root,
        "log_size": head.log_size,
        "timestamp_ms": head.timestamp_ms,
        "pruned_boundary": head.pruned_boundary,
    });
    output.result(&object, || {
        format!(
            "cluster     {cluster}\nhead        version {} of epoch {}\nstate root  {root}\nroot log    {} entries\nreadable    from version {} on",
            stamp.version, stamp.epoch, head.log_size, head.pruned_boundary
        )
    })
}

/// `coppice header`.
///
/// # Errors
/// If there is no such header.
pub async fn header(client: &Client, args: &args::Header, output: Output) -> Result<(), Failure> {
    let which = match (args.sequence, args.version) {
        (Some(sequence), _) => Which::Sequence(sequence),
        (None, Some(version)) => Which::Version(version),
        (None, None) => return Err(Failure::usage("name a version, or --sequence N")),
    };
    let bytes = client.header(which).await?;
    let header = coppice_client::header(&bytes)?;
    let object = header_json(&header);
    output.result(&object, || {
        let fields = object.as_object().into_iter().flatten();
        let lines: Vec<String> = fields.map(|(name, value)| format!("{name:<16}{}", plain(value))).collect();
        lines.join("\n")
    })
}

/// `coppice log`.
///
/// # Errors
/// If there is no answer.
pub async fn log(client: &Client, args: &args::Log, output: Output) -> Result<(), Failure> {
    let request =
        v1::WatchHeadsRequest { from_sequence: args.from, follow: args.follow, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch(request).await?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(message) = stream.next().await? else { break };
        let header = coppice_client::header(&message.header)?;
        output.result(&header_json(&header), || log_line(&header))?;
        left -= 1;
    }
    Ok(())
}

fn log_line(header: &Header) -> String {
    let what = match &header.body {
        Body::Genesis(genesis) => format!("origin {}/{}", genesis.prefix, header.cluster),
        Body::Rollback(rollback) => format!(
            "from {} to {}, by `{}`: {}",
            rollback.head_before, rollback.target, rollback.principal, rollback.reason
        ),
        Body::Prune(prune) => format!("before version {}, by `{}`: {}", prune.boundary, prune.principal, prune.reason),
        Body::Key(change) => format!(
            "number {}, to {}, by `{}`: {}",
            change.number,
            hex::encode(change.new),
            change.principal,
            change.reason
        ),
        Body::Commit | Body::Other { .. } => format!("state root {}", header.state_root),
    };
    format!("{}\t{}\t{}\t{what}", header.sequence, header.kind_name(), header.stamp)
}

/// A header as JSON: a function of its bytes alone.
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
        "shards": shards,
    })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `coppice checkpoint`.
///
/// # Errors
/// If there is no answer, or a file cannot be read or written.
pub async fn checkpoint(client: &Client, args: &args::Checkpoint, output: Output) -> Result<(), Failure> {
    let old_size = args.since.as_deref().map(size_of_checkpoint).transpose()?.unwrap_or(0);
    let answer =
        if args.cosigned { client.cosigned_checkpoint(old_size).await? } else { client.checkpoint(old_size).await? };
    super::read::save(args.proof.as_deref(), &answer.standing)?;
    let note = String::from_utf8(answer.checkpoint.to_vec()).map_err(|_| Error::Malformed("checkpoint"))?;
    let mut lines = note.lines();
    let object = json!({
        "origin": lines.next(),
        "size": lines.next().and_then(|size| size.parse::<u64>().ok()),
        "root": lines.next(),
        "note": note,
    });
    output.result(&object, || note.trim_end_matches('\n').to_owned())
}

/// The size that a note says, or the note of a proof file.
fn size_of_checkpoint(path: &std::path::Path) -> Result<u64, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path, &error))?;
    let note = match ProofFile::decode(&bytes) {
        Ok(file) => file.proof.log().checkpoint.to_vec(),
        Err(_) => bytes,
    };
    let text = String::from_utf8_lossy(&note);
    let size = text.lines().nth(1).and_then(|line| line.parse().ok());
    size.ok_or_else(|| Failure::usage(format!("{}: neither a checkpoint nor a proof file", path.display())))
}

/// `coppice status`.
///
/// # Errors
/// If there is no answer.
pub async fn status(client: &Client, output: Output) -> Result<(), Failure> {
    let status = client.status().await?;
    let head = status.head.unwrap_or_default();
    let groups: Vec<Value> = status.groups.iter().map(group_json).collect();
    let object = json!({
        "cluster_id": hex::encode(&status.cluster_id),
        "origin": status.origin,
        "vkey": status.vkey,
        "epoch": head.epoch,
        "version": head.version,
        "pruned_boundary": status.pruned_boundary,
        "term": status.term,
        "leader": status.leader,
        "groups": groups,
        "unreachable": status.unreachable,
    });
    output.result(&object, || {
        let mut text = format!(
            "{}\nversion {} of epoch {}, readable from {} on; term {} of {}",
            status.origin, head.version, head.epoch, status.pruned_boundary, status.term, status.leader
        );
        for group in &status.groups {
            text.push_str(&group_text(group));
        }
        for node in &status.unreachable {
            text.push_str(&format!("\n{node} is unreachable: its replicas are not shown"));
        }
        text
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

fn group_text(group: &v1::GroupStatus) -> String {
    let mut facts = Vec::new();
    if group.group != "root" {
        facts.push(format!("version {}, {} entries in {} trees", group.shard_version, group.entries, group.trees));
    }
    if !group.voters.is_empty() {
        facts.push(members_text(group));
    }
    let mut text = format!("\n{}: {}", group.group, facts.join(", "));
    for replica in &group.replicas {
        let note = if replica.note.is_empty() { String::new() } else { format!(", {}", replica.note) };
        text.push_str(&format!(
            "\n  {:<8} {:<11} applied {:>6}, {:>5} KiB on disk{note}",
            replica.node,
            replica.role,
            replica.applied,
            replica.bytes_on_disk / 1024
        ));
    }
    text
}

/// Whose votes raft counts.
fn members_text(group: &v1::GroupStatus) -> String {
    let shown = |id: &u64| group.replicas.iter().any(|replica| replica.raft_id == *id);
    let unseen: Vec<String> = group.voters.iter().filter(|id| !shown(id)).map(|id| format!("{id:#x}")).collect();
    let mut text = format!("{} voters", group.voters.len());
    if !group.learners.is_empty() {
        text.push_str(&format!(" and {} to come", group.learners.len()));
    }
    if !unseen.is_empty() {
        text.push_str(&format!(" (not seen: {})", unseen.join(", ")));
    }
    text
}
