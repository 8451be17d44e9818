//! Commands that show the root log: `head`, `header`, `checkpoint`, `log`, `status`.

use coppice_client::{Client, Error};
use coppice_http::forms::{checkpoint_json, has_majority, head_json, header_json, status_json, without_majority};
use coppice_proto::v1::{self, get_header_request::Which};
use coppice_types::escape::escape_lines;
use coppice_verify::{
    anchor::Anchor,
    header::{Body, Header},
    proof::ProofFile,
};
use serde_json::Value;

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
    let object = head_json(&head).ok_or(Error::Malformed("no head"))?;
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
    let note = answer.checkpoint;
    let object = checkpoint_json(&note).ok_or(Error::Malformed("checkpoint"))?;
    // A note is signed, so it goes into a pipe or a file unchanged.
    if !(output.json || output.terminal || output.is_aside()) {
        return raw(&note);
    }
    output.result(&object, || escape_lines(note.strip_suffix(b"\n").unwrap_or(&note)).to_string())
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
    let lacking = without_majority(&status);
    output.result(&status_json(&status), || status_text(&status))?;
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
