//! Commands that show the root log: `head`, `header`, `checkpoint`, `log`, `status`.

use coppice_client::{Client, Error};
use coppice_proto::v1::{self, get_header_request::Which};
use coppice_types::escape::escape_lines;
use coppice_verify::{
    anchor::Anchor,
    header::{Body, Header},
    proof::ProofFile,
};
use serde_json::{Value, json};

use super::read::version;
use crate::{
    args,
    failure::{Code, Failure},
    input,
    output::{Output, Table, raw},
    text::{self, count, safe},
    time::moment,
};

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
            "cluster     {cluster}\nhead        version {}\ncommitted   {}\nstate root  {root}\nroot log    {}\nreadable    from version {} on",
            version(stamp),
            moment(head.timestamp_ms),
            count(head.log_size, "entry"),
            head.pruned_boundary
        )
    })
}

pub async fn header(client: &Client, args: &args::Header, output: Output) -> Result<(), Failure> {
    let which = match (args.sequence, args.version) {
        (Some(sequence), _) => Which::Sequence(sequence),
        (None, Some(named)) => Which::Version(named.version),
        (None, None) => return Err(Failure::usage("name a version, or --sequence N")),
    };
    let bytes = client.header(which).await?;
    let header = coppice_client::header(&bytes)?;
    if args.version.and_then(|named| named.epoch).is_some_and(|epoch| epoch != header.stamp.epoch.0) {
        return Err(Failure::new(Code::Refused, format!("that version stands as {}", header.stamp)));
    }
    let object = header_json(&header);
    output.result(&object, || {
        let fields = object.as_object().into_iter().flatten();
        let lines = fields.map(|(name, value)| format!("{name:<16}{}", plain(name, value)));
        lines.collect::<Vec<String>>().join("\n")
    })
}

pub async fn log(client: &Client, args: &args::Log, output: Output) -> Result<(), Failure> {
    let request =
        v1::WatchHeadsRequest { from_sequence: args.from, follow: args.follow, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch(request).await?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut table = Table::new(output, &["ENTRY", "KIND", "VERSION", "TIME", "WHAT"]).live(args.follow);
    while left > 0 {
        let Some(message) = stream.next().await? else { break };
        let header = coppice_client::header(&message.header)?;
        table.row(&header_json(&header), || Ok(log_row(&header)))?;
        left -= 1;
    }
    table.end()
}

/// An entry of the log as a row. Principal and reason are written by others: they are escaped, so
/// that no entry looks like two.
pub(super) fn log_row(header: &Header) -> [String; 5] {
    let what = match &header.body {
        Body::Genesis(genesis) => format!("origin {}/{}", safe(&genesis.prefix), header.cluster),
        Body::Rollback(rollback) => {
            let (who, why) = (safe(&rollback.principal), safe(&rollback.reason));
            format!("from {} to {}, by `{who}`: {why}", rollback.head_before, rollback.target)
        }
        Body::Prune(prune) => {
            format!("before version {}, by `{}`: {}", prune.boundary, safe(&prune.principal), safe(&prune.reason))
        }
        Body::Key(change) => {
            let (who, why) = (safe(&change.principal), safe(&change.reason));
            format!("number {}, to {}, by `{who}`: {why}", change.number, hex::encode(change.new))
        }
        Body::Anchor(Anchor::Stamps(stamps)) => {
            let (size, tokens) = (count(stamps.size, "entry"), count(stamps.tokens.len() as u64, "token"));
            format!("{tokens} over the first {size}")
        }
        Body::Anchor(Anchor::Chain(certificates)) => count(certificates.len() as u64, "certificate"),
        Body::Commit | Body::Other { .. } => format!("state root {}", header.state_root),
    };
    [
        header.sequence.to_string(),
        header.kind_name().to_owned(),
        header.stamp.to_string(),
        moment(header.timestamp_ms),
        what,
    ]
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
        Body::Anchor(Anchor::Stamps(stamps)) => Some(("anchor", super::anchor::describe(header, stamps))),
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

/// A field for people. Only strings can have characters to escape: in objects, JSON has escaped
/// them.
fn plain(name: &str, value: &Value) -> String {
    match (name, value) {
        ("timestamp_ms", Value::Number(ms)) => {
            format!("{ms} ({})", moment(ms.as_u64().unwrap_or(u64::MAX)))
        }
        (_, Value::String(text)) => safe(text),
        (_, value) => value.to_string(),
    }
}

pub async fn checkpoint(client: &Client, args: &args::Checkpoint, output: Output) -> Result<(), Failure> {
    let old_size = args.since.as_deref().map(size_of_checkpoint).transpose()?.unwrap_or(0);
    let answer =
        if args.cosigned { client.cosigned_checkpoint(old_size).await? } else { client.checkpoint(old_size).await? };
    let output = output.beside(args.proof.as_deref());
    super::read::save(args.proof.as_deref(), &answer.standing)?;
    let note = String::from_utf8(answer.checkpoint.to_vec()).map_err(|_| Error::Malformed("checkpoint"))?;
    let mut lines = note.lines();
    let object = json!({
        "origin": lines.next(),
        "size": lines.next().and_then(|size| size.parse::<u64>().ok()),
        "root": lines.next(),
        "note": note,
    });
    // A note is signed, so it goes into a pipe or a file unchanged.
    if !(output.json || output.terminal || output.is_aside()) {
        return raw(note.as_bytes());
    }
    output.result(&object, || escape_lines(note.trim_end_matches('\n').as_bytes()).to_string())
}

/// The size in a note, or in the note of a proof file.
fn size_of_checkpoint(path: &std::path::Path) -> Result<u64, Failure> {
    let bytes = input::read(path)?;
    let note = match ProofFile::decode(&bytes) {
        Ok(file) => file.proof.log().checkpoint.to_vec(),
        Err(_) => bytes,
    };
    let text = String::from_utf8_lossy(&note);
    let size = text.lines().nth(1).and_then(|line| line.parse().ok());
    size.ok_or_else(|| Failure::usage(format!("{}: neither a checkpoint nor a proof file", text::path(path))))
}

/// Shows the state of the cluster. If a group lacks a majority, the command fails after that.
pub async fn status(client: &Client, output: Output) -> Result<(), Failure> {
    let status = client.status().await?;
    let groups: Vec<Value> = status.groups.iter().map(group_json).collect();
    let lacking: Vec<&str> =
        status.groups.iter().filter(|group| !has_majority(group)).map(|group| group.group.as_str()).collect();
    let object = json!({
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
        "without_majority": lacking,
    });
    output.result(&object, || status_text(&status))?;
    if lacking.is_empty() && status.head.is_some() {
        return Ok(());
    }
    let message = if lacking.is_empty() {
        "the root group did not answer in time".to_owned()
    } else {
        format!("without a majority: {}", safe(&lacking.join(", ")))
    };
    Err(Failure::new(Code::Unavailable, message)
        .hint("Start the nodes that are away; until then these groups neither write nor serve their newest state."))
}

fn status_text(status: &v1::StatusResponse) -> String {
    let head = status.head.map_or_else(
        || "head is not known: the root group does not answer".to_owned(),
        |head| {
            format!(
                "version {}, readable from version {} on; term {}",
                version(head),
                status.pruned_boundary,
                status.term
            )
        },
    );
    let leader = if status.leader.is_empty() {
        "no coordinator leads".to_owned()
    } else {
        format!("{} leads", safe(&status.leader))
    };
    let mut text = format!("{}\n{head}; {leader}", safe(&status.origin));
    for group in &status.groups {
        text.push_str(&group_text(group));
    }
    for node in &status.unreachable {
        text.push_str(&format!("\n{} is unreachable: its replicas are not shown", safe(node)));
    }
    text
}

/// Whether enough voters answered for the group to decide.
fn has_majority(group: &v1::GroupStatus) -> bool {
    let answers = |id: &&u64| group.replicas.iter().any(|it| it.raft_id == **id && it.role != "stopped");
    group.voters.iter().filter(answers).count() > group.voters.len() / 2
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
    if group.group != "root" && group.trees > 0 {
        let trees = count(group.trees.into(), "tree");
        facts.push(format!("version {}, {} in {trees}", group.shard_version, count(group.entries, "entry")));
    }
    facts.push(members_text(group));
    if !has_majority(group) {
        facts.push("NO MAJORITY".to_owned());
    }
    let mut text = format!("\n{}: {}", safe(&group.group), facts.join(", "));
    for replica in &group.replicas {
        let note = if replica.note.is_empty() { String::new() } else { format!(", {}", safe(&replica.note)) };
        let (node, role) = (safe(&replica.node), safe(&replica.role));
        let disk = text::size(replica.bytes_on_disk);
        text.push_str(&format!("\n  {node:<8} {role:<11} applied {:>6}, {disk} on disk{note}", replica.applied));
    }
    text
}

/// The voters and learners of a group.
fn members_text(group: &v1::GroupStatus) -> String {
    let shown = |id: &u64| group.replicas.iter().any(|replica| replica.raft_id == *id);
    let unseen: Vec<String> = group.voters.iter().filter(|id| !shown(id)).map(|id| format!("{id:#x}")).collect();
    if group.voters.is_empty() {
        return "no replica answers".to_owned();
    }
    let mut text = count(group.voters.len() as u64, "voter");
    if !group.learners.is_empty() {
        text.push_str(&format!(" and {}", count(group.learners.len() as u64, "learner")));
    }
    if !unseen.is_empty() {
        text.push_str(&format!(" (not seen: {})", unseen.join(", ")));
    }
    text
}
