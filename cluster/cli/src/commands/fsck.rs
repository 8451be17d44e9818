//! `coppice fsck`: every replica of a stopped data directory, offline.

use std::{fs, path::Path, sync::Arc};

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

/// `coppice fsck`.
///
/// # Errors
/// If anything is wrong with the directory, it is in use, or none.
pub fn fsck(args: &args::Fsck, output: Output) -> Result<(), Failure> {
    let dir = &args.dir;
    let cold = args.cold_dir.as_ref();
    for dir in cold.into_iter().chain([dir]) {
        fs::read_dir(dir).map_err(|error| Failure::file(dir, &error))?;
    }
    let _cold_lock = cold.map(|cold| home::lock(cold, "LOCK")).transpose()?;
    let (_lock, nodes) = if dir.join("shape.json").is_file() {
        if cold.is_some() {
            return Err(Failure::usage("--cold-dir: nodes of `coppice dev` have no cold directory"));
        }
        let nodes = names(dir, "node-")?;
        (home::lock(dir, "lock")?, nodes.into_iter().map(|node| (dir.join(&node), node)).collect())
    } else if dir.join("node").is_file() {
        // Of a process of its own: everything in it belongs to one node.
        let name =
            dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
        if let Some(cold) = cold {
            let owner =
                |dir: &Path| fs::read(dir.join("node")).map_err(|error| Failure::file(&dir.join("node"), &error));
            if owner(cold)? != owner(dir)? {
                return Err(Failure::usage(format!("--cold-dir: {} is not this node's", cold.display())));
            }
        }
        (home::lock(dir, "LOCK")?, vec![(dir.clone(), name)])
    } else {
        let message = format!("{}: no data directory of `coppice dev` or of a coppice-shard-node", dir.display());
        return Err(Failure::usage(message));
    };
    let mut wrong = 0;
    for (dir, node) in nodes {
        let disk = Arc::new(DiskStorage::new(&dir));
        let storage: Arc<dyn Storage> = match cold {
            None => disk,
            Some(cold) => Arc::new(TieredStorage::new(disk, Arc::new(DiskStorage::new(cold)))),
        };
        for name in names(&dir, "group-")? {
            let Some(group) = name["group-".len()..].parse().ok().map(GroupId::from_number) else { continue };
            let report = check(&storage, group);
            if let Some(missing) = report.cold_missing {
                return Err(Failure::new(Code::Unavailable, format!("{node} {group}: {missing}"))
                    .hint("Nothing is wrong by that: name the node's cold directory by --cold-dir."));
            }
            if let Some(other) = report.other_format {
                return Err(Failure::new(Code::Refused, format!("{node} {group}: {other}"))
                    .hint("Nothing is wrong by that, and nothing was checked."));
            }
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
