//! The differences between two trees of a git repository.
//!
//! Objects are found by name, and a hostile repository can hold an object whose name is not its
//! hash. So trees may contain each other in a loop, and grow without end on the way down. The depth
//! and the number of visited entries are bounded.

use std::collections::BTreeMap;

use super::objects::{Id, Objects};
use crate::failure::{Code, Failure};

/// Most entries that are visited for one commit.
const ENTRIES_MAX: usize = 1 << 20;
/// A directory takes as long to read as this many entries take to visit.
const DIRECTORY_ENTRIES: usize = 8;

/// The kinds of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    /// A file, or a link, which counts as a file that holds its target.
    File,
    /// A commit of another repository, which has no content here.
    Submodule,
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub kind: Kind,
    pub id: Id,
}

/// A path that differs between two trees.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathChange {
    pub path: Vec<u8>,
    /// The new entry; `None` if the path is gone.
    pub now: Option<Entry>,
}

/// Compares two trees. Changes are in the order of their paths. `path_bytes_max` is the limit of
/// keys. A directory whose own path is longer stands for everything in it.
pub(super) struct Comparison<'a> {
    pub objects: &'a mut Objects,
    pub path_bytes_max: usize,
    pub changes: Vec<PathChange>,
    pub looked_at: usize,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(objects: &'a mut Objects, path_bytes_max: usize) -> Self {
        Self { objects, path_bytes_max, changes: Vec::new(), looked_at: 0 }
    }

    /// Compares two trees; `None` is an empty one.
    pub(super) fn run(mut self, before: Option<&Id>, now: Option<&Id>) -> Result<Vec<PathChange>, Failure> {
        self.trees(&[], before, now)?;
        self.changes.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(self.changes)
    }

    /// Recurses at most as deep as a path has bytes.
    fn trees(&mut self, path: &[u8], before: Option<&Id>, now: Option<&Id>) -> Result<(), Failure> {
        if before == now {
            return Ok(());
        }
        let (before, mut now) = (self.entries(before)?, self.entries(now)?);
        self.looked_at += before.len() + now.len() + DIRECTORY_ENTRIES;
        if self.looked_at > ENTRIES_MAX {
            let message = format!("one commit changes more than {ENTRIES_MAX} files and directories");
            return Err(Failure::new(Code::Refused, message));
        }
        for (name, old) in before {
            let new = now.remove(&name);
            self.entry(&join(path, &name), Some(old), new)?;
        }
        for (name, new) in now {
            self.entry(&join(path, &name), None, Some(new))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], before: Option<Entry>, now: Option<Entry>) -> Result<(), Failure> {
        if before == now {
            return Ok(());
        }
        let directory = |entry: &Option<Entry>| {
            entry.as_ref().filter(|entry| entry.kind == Kind::Directory).map(|entry| Id::clone(&entry.id))
        };
        let (old_tree, new_tree) = (directory(&before), directory(&now));
        if path.len() < self.path_bytes_max {
            if old_tree.is_some() || new_tree.is_some() {
                self.trees(path, old_tree.as_ref(), new_tree.as_ref())?;
            }
        } else if new_tree.is_some() {
            // Nothing below this directory can be a key: it is left out under its own name.
            self.changes.push(PathChange { path: path.to_owned(), now: now.clone() });
        }
        match (before, now) {
            (_, Some(now)) if now.kind != Kind::Directory => {
                self.changes.push(PathChange { path: path.to_owned(), now: Some(now) });
            }
            (Some(before), _) if before.kind != Kind::Directory => {
                self.changes.push(PathChange { path: path.to_owned(), now: None });
            }
            _ => {}
        }
        Ok(())
    }

    fn entries(&mut self, tree: Option<&Id>) -> Result<BTreeMap<Vec<u8>, Entry>, Failure> {
        let Some(tree) = tree else { return Ok(BTreeMap::new()) };
        let object = self.objects.get("tree", tree)?;
        let object = object.ok_or_else(|| self.objects.wrong(&format!("tree {tree} is missing")))?;
        parse(&object.content, object.id.len() / 2)
            .ok_or_else(|| self.objects.wrong(&format!("tree {tree} is malformed")))
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Reads `MODE NAME\0ID...`; an id has `id_bytes` bytes.
fn parse(mut content: &[u8], id_bytes: usize) -> Option<BTreeMap<Vec<u8>, Entry>> {
    let mut entries = BTreeMap::new();
    while !content.is_empty() {
        let space = content.iter().position(|&byte| byte == b' ')?;
        let (mode, rest) = (&content[..space], &content[space + 1..]);
        let end = rest.iter().position(|&byte| byte == 0)?;
        let name = &rest[..end];
        let (id, rest) = rest[end + 1..].split_at_checked(id_bytes)?;
        if name.is_empty() || name.contains(&b'/') {
            return None;
        }
        let kind = match mode.strip_prefix(b"0").unwrap_or(mode) {
            b"40000" => Kind::Directory,
            b"160000" => Kind::Submodule,
            _ => Kind::File,
        };
        let entry = Entry { kind, id: hex::encode(id).into() };
        if entries.insert(name.to_vec(), entry).is_some() {
            return None;
        }
        content = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_tree_is_refused() {
        let id = [7; 20];
        let entry = |head: &[u8]| [head, b"\0", &id].concat();
        let read = parse(&[entry(b"100644 a"), entry(b"40000 b"), entry(b"160000 c")].concat(), 20).expect("a tree");
        let kinds: Vec<&Kind> = read.values().map(|entry| &entry.kind).collect();
        assert_eq!(kinds, [&Kind::File, &Kind::Directory, &Kind::Submodule]);
        assert_eq!(parse(b"", 20), Some(BTreeMap::new()));
        let twice = [entry(b"100644 a"), entry(b"40000 a")].concat();
        for bad in [&entry(b"100644 ")[..], &entry(b"100644 a/b"), &twice, b"100644 a", b"100644", b"100644 a\0short"] {
            assert_eq!(parse(bad, 20), None, "{bad:?}");
        }
    }
}
