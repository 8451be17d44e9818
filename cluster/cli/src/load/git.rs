//! The history of a git repository: each commit is one version, key = path, value = file.
//!
//! The first-parent history is read from the oldest commit on. A merge stands for its changes
//! against its first parent. Files and paths over their limits, and submodules, can't be in a
//! version: they are left out and named. A file that was left out has no value at that version,
//! rather than an old one. [`objects`] says why a repository that somebody else made is safe to
//! read.

mod objects;
mod tree;

use std::{collections::HashSet, path::Path, vec};

use coppice_proto::v1::{self, operation::Change};
use coppice_types::Params;
use serde_json::json;

use super::source::{Item, Source};
use crate::failure::Failure;
use objects::{Blob, Id, Object, Objects};
use tree::{Comparison, Kind};

/// Most names of omitted files that are kept.
const SKIPPED_MAX: usize = 1000;

/// The commits of a repository, oldest first.
pub(crate) struct Commits {
    objects: Objects,
    commits: vec::IntoIter<Id>,
    /// The tree of the previous commit.
    before: Option<Id>,
    first: String,
    done: u64,
    total: u64,
    limits: Limits,
    skipped: Vec<String>,
}

/// The parts of a commit that a load uses.
#[derive(Debug, PartialEq, Eq)]
struct Commit {
    tree: Id,
    /// The first parent.
    parent: Option<Id>,
    /// The time of the commit; `None` if it is malformed.
    time_ms: Option<u64>,
    subject: String,
}

struct Limits {
    key_bytes: usize,
    value_bytes: usize,
    batch_bytes: usize,
}

impl Commits {
    /// Reads the list of commits of the repository at `dir`.
    pub(crate) fn open(dir: &Path, params: &Params) -> Result<Self, Failure> {
        let mut objects = Objects::open(dir)?;
        let commits = history(&mut objects)?;
        Ok(Self {
            first: commits.first().map(ToString::to_string).unwrap_or_default(),
            total: commits.len() as u64,
            commits: commits.into_iter(),
            objects,
            before: None,
            done: 0,
            limits: Limits {
                key_bytes: params.key_bytes_max as usize,
                value_bytes: params.value_bytes_max as usize,
                batch_bytes: params.batch_bytes_max as usize,
            },
            skipped: Vec::new(),
        })
    }

    fn batch(&mut self, id: &Id, commit: &Commit) -> Result<v1::Batch, Failure> {
        let during = |failure: Failure| failure.during(&format!("commit {id}"));
        let comparison = Comparison::new(&mut self.objects, self.limits.key_bytes);
        let changes = comparison.run(self.before.as_ref(), Some(&commit.tree)).map_err(during)?;
        let metadata = json!({ "commit": **id, "time_ms": commit.time_ms, "note": commit.subject }).to_string();
        let mut batch_bytes = metadata.len();
        let mut operations = Vec::with_capacity(changes.len());
        for tree::PathChange { path, now } in changes {
            if path.len() > self.limits.key_bytes || now.as_ref().is_some_and(|now| now.kind == Kind::Directory) {
                // The path never had a value, so there is none to delete.
                if now.is_some() {
                    self.skip(id, &path, "the path is longer than a key may be");
                }
                continue;
            }
            let room = self.limits.batch_bytes.saturating_sub(batch_bytes + path.len());
            let value = match now {
                Some(now) => self.value(id, &path, &now, room)?,
                None => None,
            };
            batch_bytes += path.len() + value.as_ref().map_or(0, Vec::len);
            let change = value.map_or(Change::Delete(true), |value| Change::Put(value.into()));
            operations.push(v1::Operation { key: path.into(), change: Some(change) });
        }
        Ok(v1::Batch { operations, metadata: metadata.into_bytes().into(), exclusive: true, ..v1::Batch::default() })
    }

    /// The content of an entry; `None` if it is left out.
    fn value(&mut self, id: &Id, path: &[u8], entry: &tree::Entry, room: usize) -> Result<Option<Vec<u8>>, Failure> {
        if entry.kind == Kind::Submodule {
            self.skip(id, path, "a submodule");
            return Ok(None);
        }
        let most = self.limits.value_bytes.min(room);
        match self.objects.blob(&entry.id, most)? {
            Some(Blob::Content(value)) => Ok(Some(value)),
            Some(Blob::TooLong(len)) => {
                let limit =
                    if len > self.limits.value_bytes { "a value may have" } else { "this version has room for" };
                self.skip(id, path, &format!("{len} bytes, more than {limit}"));
                Ok(None)
            }
            None => Err(missing(&self.objects, &format!("file {}", entry.id))),
        }
    }

    fn skip(&mut self, id: &Id, path: &[u8], why: &str) {
        if self.skipped.len() < SKIPPED_MAX {
            self.skipped.push(format!("{} at {}: {why}", String::from_utf8_lossy(path), &id[..id.len().min(12)]));
        }
    }
}

impl Source for Commits {
    fn next(&mut self) -> Result<Option<Item>, Failure> {
        let Some(id) = self.commits.next() else { return Ok(None) };
        let object = self.objects.get("commit", &id)?;
        let object = object.ok_or_else(|| missing(&self.objects, &format!("commit {id}")))?;
        let commit = parse(&self.objects, &object)?;
        let batch = self.batch(&id, &commit)?;
        self.done += 1;
        self.before = Some(commit.tree);
        Ok(Some(Item { batch, identity: format!("git {}", self.first).into_bytes(), place: format!("commit {id}") }))
    }

    fn progress(&self) -> (u64, Option<u64>) {
        (self.done, Some(self.total))
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }
}

/// The names of all commits from the first to the one that is checked out. Each is the first parent
/// of the next.
fn history(objects: &mut Objects) -> Result<Vec<Id>, Failure> {
    let Some(mut object) = objects.head()? else {
        return Err(objects.wrong("there is no commit at HEAD"));
    };
    let mut seen = HashSet::new();
    let mut commits = Vec::new();
    loop {
        let commit = parse(objects, &object)?;
        // If a name is not the hash of its object, a history can be a loop.
        if !seen.insert(Id::clone(&object.id)) {
            return Err(objects.wrong(&format!("commit {} is its own ancestor", object.id)));
        }
        commits.push(object.id);
        let Some(parent) = commit.parent else { break };
        object = objects.get("commit", &parent)?.ok_or_else(|| missing(objects, &format!("commit {parent}")))?;
    }
    commits.reverse();
    Ok(commits)
}

fn missing(objects: &Objects, what: &str) -> Failure {
    objects
        .wrong(&format!("{what} is missing"))
        .hint("The clone is shallow or partial. `git fetch --unshallow` or `git fetch --refetch` gets the rest.")
}

fn parse(objects: &Objects, object: &Object) -> Result<Commit, Failure> {
    parse_commit(&object.content).ok_or_else(|| objects.wrong(&format!("commit {} is malformed", object.id)))
}

/// Reads a commit object: header lines, an empty line, the message.
fn parse_commit(content: &[u8]) -> Option<Commit> {
    let end = content.windows(2).position(|pair| pair == b"\n\n");
    let (head, message) = end.map_or((content, &b""[..]), |end| (&content[..end], &content[end + 2..]));
    let mut lines = head.split(|&byte| byte == b'\n');
    let tree = id(lines.next()?.strip_prefix(b"tree ")?)?;
    let mut lines = lines.peekable();
    let parent = match lines.next_if(|line| line.starts_with(b"parent ")) {
        Some(line) => Some(id(&line[b"parent ".len()..])?),
        None => None,
    };
    let committer = lines.find_map(|line| line.strip_prefix(b"committer "))?;
    Some(Commit { tree, parent, time_ms: time_ms(committer), subject: subject(message) })
}

fn id(hex: &[u8]) -> Option<Id> {
    let digits = hex.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (digits && matches!(hex.len(), 40 | 64)).then(|| String::from_utf8_lossy(hex).into())
}

/// The time in `NAME <MAIL> SECONDS ZONE`.
fn time_ms(committer: &[u8]) -> Option<u64> {
    let after = committer.iter().rposition(|&byte| byte == b'>')? + 1;
    let seconds: u64 = std::str::from_utf8(&committer[after..]).ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    seconds.checked_mul(1000)
}

/// The first paragraph of a message, on one line.
fn subject(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let lines = text.split('\n').map(str::trim_end).skip_while(|line| line.is_empty());
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
