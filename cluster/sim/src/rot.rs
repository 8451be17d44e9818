//! The judge of a byte that went bad: it must be found, or dead.
//!
//! It is found if `fsck` of the image names damage. At the end of a raft log or in the newer
//! superblock, a bad byte looks like a write that a crash has torn. `fsck` notes that and mends it
//! as such; only a later write could tell the difference.
//!
//! It is dead if everything that can be read from the image is the same with it and without it.
//! Then it lies in free space, behind the end of the content, or in a file that nothing refers to.

use std::{fmt::Write, sync::Arc};

use coppice_consensus::Group;
use coppice_engine::Engine;
use coppice_env::{OpenMode, SimStorage, Storage};
use coppice_root::Root;
use coppice_shard_node::{Node, fsck};
use coppice_types::{GroupId, Sequence, Version};

use crate::{history::Finding, node, shape::CLUSTER};

/// Verdict on a bad byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// `fsck` names it, or takes it for the effect of a crash.
    Found,
    /// Nothing depends on it.
    Dead,
}

/// Judges a byte of a file that is sound in one image and bad in the other.
///
/// # Errors
/// If it is neither found nor dead: it could get into an answer.
pub fn judge(sound: &SimStorage, bad: &SimStorage, group: GroupId, file: &str) -> Result<Rot, Finding> {
    let check = |image: &SimStorage| fsck::check(&node::storage_of(&image.process_loss()), group);
    let (before, after) = (check(sound), check(bad));
    if !after.findings.is_empty() || after.notes > before.notes {
        return Ok(Rot::Found);
    }
    let file = in_hot(file);
    let parts: Vec<&str> = file.split('/').collect();
    let same = match parts[..] {
        [_, "raft", ..] => log(sound, group)? == log(bad, group)?,
        [directory, state, ..] if state.starts_with("state-") => {
            let path = format!("{directory}/{state}");
            is_leftover(sound, directory, state) || contents(sound, group, &path)? == contents(bad, group, &path)?
        }
        // Quarantined and removed replicas are never read again. A copy that is being received is
        // checked when it is complete.
        [_, "evidence", ..] => true,
        _ => file.starts_with("removed-"),
    };
    if same { Ok(Rot::Dead) } else { Err(format!("rot: {group}: fsck finds nothing wrong with {file}")) }
}

/// Whether the state directory may not be the one in use, since there are several.
fn is_leftover(image: &SimStorage, directory: &str, state: &str) -> bool {
    let names = image.list(directory).unwrap_or_default();
    names.iter().any(|name| name.starts_with("state-") && name != state)
}

/// The properties of a raft log that its checksums do not fix: the positions of its beginning and
/// end.
fn log(image: &SimStorage, group: GroupId) -> Result<String, Finding> {
    let image = image.process_loss();
    let failed = |what: String| format!("rot: the log of {group}: {what}");
    let raft_id = Node::stored_raft_id(&image, group).map_err(|error| failed(error.to_string()))?.unwrap_or_default();
    let storage = image.subdir(&format!("{}/raft", directory_of(group))).map_err(|error| failed(error.to_string()))?;
    let report = Group::inspect(storage.as_ref(), CLUSTER, group, raft_id);
    Ok(format!("{:?}", report.map_err(|error| failed(error.to_string()))?))
}

/// Everything that can be read from a state directory.
fn contents(image: &SimStorage, group: GroupId, directory: &str) -> Result<String, Finding> {
    let storage = node::storage_of(&image.process_loss()).subdir(directory).map_err(|error| error.to_string())?;
    let mut text = String::new();
    match group {
        GroupId::Root => root(storage, &mut text).map_err(|error| format!("rot: {group} in {directory}: {error}"))?,
        GroupId::Shard(_) => {
            shard(storage, &mut text).map_err(|error| format!("rot: {group} in {directory}: {error}"))?;
        }
    }
    Ok(text)
}

fn root(storage: Arc<dyn Storage>, text: &mut String) -> Result<(), coppice_root::Error> {
    let root = Root::open(storage)?;
    // Writing to a string can't fail.
    let _ = write!(text, "{:?} {:?}", root.view().ok(), root.sessions().collect::<Vec<_>>());
    for sequence in (0..root.log_size()).map(Sequence) {
        let (header, journal) = (root.header(sequence)?, root.journal(sequence)?);
        let _ = write!(text, "{header:?} {journal:?} {:?}", root.inclusion(sequence, root.log_size())?);
    }
    Ok(())
}

fn shard(storage: Arc<dyn Storage>, text: &mut String) -> Result<(), coppice_engine::Error> {
    if !Engine::exists(storage.as_ref())? {
        return Ok(());
    }
    let engine = Engine::open(storage, node::engine_options())?;
    let mut versions: Vec<_> = (engine.boundary().0..=engine.decided().version.0)
        .map(|version| engine.decided_at(Version(version)))
        .collect::<Result<_, _>>()?;
    versions.dedup();
    let _ = write!(text, "{:?} {:?}", engine.machine_state(), engine.durable_position());
    for state in versions {
        let view = engine.view(&state)?;
        let page = view.range(b"", None, usize::MAX, true)?;
        for record in &page.records {
            let _ = write!(text, "{:?}", view.get(&record.key, true)?);
        }
        let (proof, journals) =
            (view.prove_range(b"", None)?, engine.journals(&state, Version(0), state.version, usize::MAX)?);
        let _ = write!(text, "{state:?} {page:?} {proof:?} {journals:?}");
    }
    Ok(())
}

/// The directory of a group's replica.
#[must_use]
pub fn directory_of(group: GroupId) -> String {
    format!("group-{}", group.number())
}

/// The path of a file, as if it were not in the cold directory.
fn in_hot(file: &str) -> &str {
    file.strip_prefix("cold/").unwrap_or(file)
}

/// The group that a file belongs to.
#[must_use]
pub fn group_of(file: &str) -> Option<GroupId> {
    let directory = in_hot(file).split('/').next()?;
    let number = directory.strip_prefix("group-").or_else(|| directory.strip_prefix("removed-"))?;
    number.parse().ok().map(GroupId::from_number)
}

/// Length of a file in bytes; 0 if it can't be opened.
#[must_use]
pub fn length(image: &SimStorage, file: &str) -> u64 {
    image.open(file, OpenMode::Existing).and_then(|file| file.len()).unwrap_or(0)
}
