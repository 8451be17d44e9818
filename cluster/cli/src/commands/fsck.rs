//! `coppice fsck`: checks every replica of a stopped data directory, offline.
//!
//! A missing replica is not sound. The shape in a directory of `coppice dev` says which replicas it
//! has: once the groups were formed, all of them are expected. In a node's directory, at least one
//! replica is expected.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use coppice_env::{DiskStorage, Storage, TieredStorage};
use coppice_shard_node::fsck::{Report, check};
use coppice_types::GroupId;
use serde_json::{Value, json};

use crate::{
    args,
    dev::home,
    failure::{Code, Failure},
    output::Output,
};

/// A node's directory, and the groups whose replicas it should have.
struct Node {
    dir: PathBuf,
    name: String,
    expected: BTreeSet<GroupId>,
}

pub fn fsck(args: &args::Fsck, output: Output) -> Result<(), Failure> {
    let dir = &args.dir;
    let cold = args.cold_dir.as_deref();
    for dir in cold.into_iter().chain([dir.as_path()]) {
        fs::read_dir(dir).map_err(|error| Failure::file(dir, &error))?;
    }
    let _cold_lock = cold.map(|cold| home::lock(cold, "LOCK")).transpose()?;
    let (_lock, nodes) = if dir.join("shape.json").is_file() {
        if cold.is_some() {
            return Err(Failure::usage("--cold-dir: nodes of `coppice dev` have no cold directory"));
        }
        (home::lock(dir, "lock")?, dev_nodes(dir)?)
    } else if dir.join("node").is_file() {
        (home::lock(dir, "LOCK")?, vec![process_node(dir, cold)?])
    } else {
        let message = format!("{}: no data directory of `coppice dev` or of a coppice-shard-node", dir.display());
        return Err(Failure::usage(message));
    };
    let mut wrong = 0;
    for node in &nodes {
        wrong += check_node(node, cold, output)?;
    }
    if wrong == 0 {
        return Ok(());
    }
    let findings = if wrong == 1 { "finding" } else { "findings" };
    Err(Failure::new(Code::NotFound, format!("{}: {wrong} {findings}", dir.display()))
        .hint("Remove the directory of a damaged replica: it comes back from the others. Without a sound majority, restore a backup."))
}

/// The nodes of `coppice dev`: those that the shape names, and any others in the directory.
fn dev_nodes(dir: &Path) -> Result<Vec<Node>, Failure> {
    let shape = home::read_shape(&dir.join("shape.json"))?;
    // Before the groups were formed, no replica has promised anything.
    let formed = dir.join("formed").is_file();
    let mut groups = BTreeSet::from([GroupId::Root]);
    groups.extend(shape.shard_map()?.shards().iter().map(|shard| GroupId::Shard(shard.id)));
    let expected = if formed { groups } else { BTreeSet::new() };
    let mut names: BTreeSet<String> = names(dir, "node-")?.into_iter().collect();
    if formed {
        names.extend((1..=shape.replicas).map(|ordinal| format!("node-{ordinal}")));
    }
    let node = |name: String| Node { dir: dir.join(&name), name, expected: expected.clone() };
    Ok(names.into_iter().map(node).collect())
}

/// The node of a separate process: everything in its directory belongs to it.
fn process_node(dir: &Path, cold: Option<&Path>) -> Result<Node, Failure> {
    let name = dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
    if let Some(cold) = cold {
        let owner = |dir: &Path| fs::read(dir.join("node")).map_err(|error| Failure::file(&dir.join("node"), &error));
        if owner(cold)? != owner(dir)? {
            return Err(Failure::usage(format!("--cold-dir: {} is not this node's", cold.display())));
        }
    }
    if names(dir, "group-")?.is_empty() {
        let message = format!("{}: the node has no replica, so nothing was checked", dir.display());
        return Err(Failure::new(Code::NotFound, message).hint(
            "A new node that never ran has none. Any other has lost them: they come back from the other nodes.",
        ));
    }
    Ok(Node { dir: dir.to_owned(), name, expected: BTreeSet::new() })
}

/// Checks the replicas of a node. Returns the number of findings.
fn check_node(node: &Node, cold: Option<&Path>, output: Output) -> Result<usize, Failure> {
    let disk = Arc::new(DiskStorage::new(&node.dir));
    let storage: Arc<dyn Storage> = match cold {
        None => disk,
        Some(cold) => Arc::new(TieredStorage::new(disk, Arc::new(DiskStorage::new(cold)))),
    };
    let mut groups = node.expected.clone();
    if node.dir.is_dir() {
        let numbers = names(&node.dir, "group-")?;
        groups.extend(numbers.iter().filter_map(|name| name["group-".len()..].parse().ok()).map(GroupId::from_number));
    }
    let mut wrong = 0;
    for group in groups {
        let mut report = check(&storage, group);
        if let Some(missing) = report.cold_missing {
            return Err(Failure::new(Code::Unavailable, format!("{} {group}: {missing}", node.name))
                .hint("This is not damage: name the node's cold directory with --cold-dir."));
        }
        if let Some(other) = report.other_format {
            return Err(Failure::new(Code::Refused, format!("{} {group}: {other}", node.name))
                .hint("This is not damage, but nothing was checked."));
        }
        if report.absent {
            let place = node.dir.join(format!("group-{}", group.number()));
            report
                .findings
                .push(format!("missing: a replica is expected in {}, and nothing is there", place.display()));
        }
        wrong += report.findings.len();
        tell(&node.name, group, &report, output)?;
    }
    Ok(wrong)
}

/// The sorted names in a directory that begin with `prefix`.
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

fn tell(node: &str, group: GroupId, report: &Report, output: Output) -> Result<(), Failure> {
    let object: Value = json!({
        "node": node,
        "group": group.to_string(),
        "sound": report.findings.is_empty(),
        "missing": report.absent,
        "findings": report.findings,
        "notes": report.notes,
    });
    output.result(&object, || {
        let state = match (report.absent, report.findings.is_empty()) {
            (true, _) => "MISSING",
            (false, true) => "sound",
            (false, false) => "DAMAGED",
        };
        let lines: Vec<String> = report.findings.iter().map(|finding| format!("\n  {finding}")).collect();
        format!("{node} {group}: {state}{}", lines.concat())
    })
}
