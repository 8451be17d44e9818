//! `coppice fsck`: every replica of a stopped data directory, offline.

use std::{fs, path::Path, sync::Arc};

use coppice_consensus::RaftId;
use coppice_env::{DiskStorage, Storage};
use coppice_shard_node::home::{self as replica_home, Home as ReplicaHome};
use coppice_types::GroupId;
use serde_json::{Value, json};

use crate::{
    args,
    dev::home,
    failure::{Code, Failure},
    output::Output,
};

/// What was found in one replica's directory.
#[derive(Debug, Default)]
struct Report {
    /// What is wrong.
    findings: Vec<String>,
    /// What a crash left and the next start removes.
    notes: usize,
}

/// `coppice fsck`.
///
/// # Errors
/// If anything is wrong with the directory, it is in use, or none.
pub fn fsck(args: &args::Fsck, output: Output) -> Result<(), Failure> {
    let dir = &args.dir;
    fs::read_dir(dir).map_err(|error| Failure::file(dir, &error))?;
    if !dir.join("shape.json").is_file() {
        return Err(Failure::usage(format!("{}: no data directory of `coppice dev`", dir.display())));
    }
    let _lock = home::lock(dir)?;
    let mut wrong = 0;
    for node in names(dir, "node-")? {
        let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(dir.join(&node)));
        for name in names(&dir.join(&node), "group-")? {
            let Some(group) = name["group-".len()..].parse().ok().map(GroupId::from_number) else { continue };
            let report = check_replica(&storage, group);
            wrong += report.findings.len();
            tell(&node, group, &report, output)?;
        }
    }
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::new(Code::NotFound, format!("{}: {wrong} findings", dir.display()))
        .hint("Remove the directory of a damaged replica: it comes back from the others. Without a sound majority, restore a backup."))
}

/// Names in a directory that begin so, in order.
fn names(dir: &Path, prefix: &str) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(dir).map_err(|error| Failure::file(dir, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| Failure::file(dir, &error))?.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn check_replica(node: &Arc<dyn Storage>, group: GroupId) -> Report {
    let mut report = Report::default();
    if let Err(error) = check_parts(node, group, &mut report) {
        report.findings.push(error);
    }
    report
}

fn check_parts(node: &Arc<dyn Storage>, group: GroupId, report: &mut Report) -> Result<(), String> {
    let text = |error: coppice_shard_node::Error| error.to_string();
    let identity = replica_home::stored(node.as_ref(), group).map_err(text)?;
    // A crash before the identity was written leaves a directory that holds nothing.
    let Some(identity) = identity else { return Ok(()) };
    let home = ReplicaHome::open(node.as_ref(), identity).map_err(text)?;
    if !home.started() {
        report.notes += 1;
        return Ok(());
    }
    check_log(&home, identity, report).map_err(text)?;
    let state = home.state().map_err(text)?;
    let finding = |file: &str, what: &dyn std::fmt::Display| format!("{file}: {what}");
    match group {
        GroupId::Root => {
            let found = coppice_root::fsck::fsck(&state).map_err(|error| error.to_string())?;
            report.notes += found.notes.len();
            report.findings.extend(found.findings.iter().map(|found| finding(&found.file, &found.what)));
        }
        GroupId::Shard(_) => {
            let found = coppice_engine::fsck(state).map_err(|error| error.to_string())?;
            report.notes += found.notes.len();
            report.findings.extend(found.findings.iter().map(|found| finding(&found.file, &found.what)));
        }
    }
    Ok(())
}

/// The small files and the raft log beside the state.
fn check_log(
    home: &ReplicaHome,
    identity: replica_home::Identity,
    report: &mut Report,
) -> Result<(), coppice_shard_node::Error> {
    let floor = home.floor()?;
    home.incoming()?;
    let raft = home.raft()?;
    let replica_home::Identity { cluster, group, raft_id } = identity;
    match coppice_consensus::Group::inspect(raft.as_ref(), cluster, group, RaftId(raft_id)) {
        Ok(Some(log)) if log.last.index < floor.index => {
            report.findings.push(format!("raft: the log ends at {}, before {}", log.last.index, floor.index));
        }
        Ok(Some(log)) => report.notes += log.leftovers + usize::from(log.torn),
        Ok(None) => report.findings.push("raft: there is no log".to_owned()),
        Err(error) => report.findings.push(format!("raft/{error}")),
    }
    Ok(())
}

fn tell(node: &str, group: GroupId, report: &Report, output: Output) -> Result<(), Failure> {
    let object: Value = json!({
        "node": node,
        "group": group.to_string(),
        "sound": report.findings.is_empty(),
        "findings": report.findings,
        "notes": report.notes,
    });
    output.result(&object, || {
        let state = if report.findings.is_empty() { "sound" } else { "DAMAGED" };
        let lines: Vec<String> = report.findings.iter().map(|finding| format!("\n  {finding}")).collect();
        format!("{node} {group}: {state}{}", lines.concat())
    })
}
