//! The history of a git repository, by the `git` command: one commit is one version, key = path, value = file.
//!
//! The first-parent history is walked from the oldest commit; a merge is what it changed against its first parent. What no
//! version can hold is left out and named: files and paths over their limits, submodules. A file that was left out has no
//! value at that version, not an old one.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    vec,
};

use coppice_proto::v1::{self, operation::Change};
use coppice_types::Params;
use serde_json::json;

use super::{Item, Source};
use crate::failure::{Code, Failure};

/// Mode of a submodule, which has no content here.
const SUBMODULE: &str = "160000";

/// How many names of what was left out are kept.
const SKIPPED_MAX: usize = 1000;

/// The commits of a repository, oldest first.
pub(crate) struct Commits {
    dir: PathBuf,
    commits: vec::IntoIter<Commit>,
    before: Option<String>,
    first: String,
    done: u64,
    total: u64,
    blobs: Blobs,
    limits: Limits,
    skipped: Vec<String>,
}

struct Commit {
    id: String,
    time_ms: u64,
    subject: String,
}

struct Limits {
    key_bytes: usize,
    value_bytes: usize,
    batch_bytes: usize,
}

/// One changed path of a commit.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: Vec<u8>,
    /// The object of the new file; `None` if there is none any more.
    object: Option<String>,
    mode: String,
}

impl Commits {
    /// Reads the list of commits of the repository at `dir`.
    pub(crate) fn open(dir: &Path, params: &Params) -> Result<Self, Failure> {
        if git(dir, ["rev-parse", "--is-shallow-repository"])?.trim_ascii() == b"true" {
            let failure = Failure::usage(format!("{}: the clone is shallow, its history is cut off", dir.display()));
            return Err(failure.hint("`git fetch --unshallow` gets the rest."));
        }
        let list = git(dir, ["log", "--first-parent", "--reverse", "-z", "--format=%H %ct %s", "HEAD"])?;
        let commits: Vec<Commit> =
            list.split(|&byte| byte == 0).filter(|line| !line.is_empty()).filter_map(parse_commit).collect();
        let first = commits.first().map(|commit| commit.id.clone()).unwrap_or_default();
        Ok(Self {
            dir: dir.to_owned(),
            total: commits.len() as u64,
            commits: commits.into_iter(),
            before: None,
            first,
            done: 0,
            blobs: Blobs::open(dir)?,
            limits: Limits {
                key_bytes: params.key_bytes_max as usize,
                value_bytes: params.value_bytes_max as usize,
                batch_bytes: params.batch_bytes_max as usize,
            },
            skipped: Vec::new(),
        })
    }

    fn batch(&mut self, commit: &Commit) -> Result<v1::Batch, Failure> {
        let mut command = vec!["diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", "--root"];
        command.extend(self.before.as_deref());
        command.push(&commit.id);
        let entries = parse_entries(&git(&self.dir, command)?)
            .ok_or_else(|| Failure::usage(format!("git diff-tree of {} makes no sense", commit.id)))?;
        let metadata = json!({ "commit": commit.id, "time_ms": commit.time_ms, "note": commit.subject }).to_string();
        let mut batch_bytes = metadata.len();
        let mut operations = Vec::with_capacity(entries.len());
        for entry in entries {
            if entry.path.len() > self.limits.key_bytes {
                self.skip(commit, &entry.path, "the path is longer than a key may be");
                continue;
            }
            let value =
                self.value(commit, &entry, self.limits.batch_bytes.saturating_sub(batch_bytes + entry.path.len()))?;
            batch_bytes += entry.path.len() + value.as_ref().map_or(0, Vec::len);
            let change = value.map_or(Change::Delete(true), |value| Change::Put(value.into()));
            operations.push(v1::Operation { key: entry.path.into(), change: Some(change) });
        }
        Ok(v1::Batch { operations, metadata: metadata.into_bytes().into(), exclusive: true, ..v1::Batch::default() })
    }

    /// The content of an entry; `None` for what is gone, or left out.
    fn value(&mut self, commit: &Commit, entry: &Entry, room: usize) -> Result<Option<Vec<u8>>, Failure> {
        let Some(object) = &entry.object else { return Ok(None) };
        if entry.mode == SUBMODULE {
            self.skip(commit, &entry.path, "a submodule");
            return Ok(None);
        }
        let most = self.limits.value_bytes.min(room);
        match self.blobs.read(object, most)? {
            Blob::Content(value) => Ok(Some(value)),
            Blob::TooLong(len) => {
                let limit =
                    if len > self.limits.value_bytes { "a value may have" } else { "this version has room for" };
                self.skip(commit, &entry.path, &format!("{len} bytes, more than {limit}"));
                Ok(None)
            }
        }
    }

    fn skip(&mut self, commit: &Commit, path: &[u8], why: &str) {
        if self.skipped.len() < SKIPPED_MAX {
            let short = &commit.id[..commit.id.len().min(12)];
            self.skipped.push(format!("{} at {short}: {why}", String::from_utf8_lossy(path)));
        }
    }
}

impl Source for Commits {
    fn next(&mut self) -> Result<Option<Item>, Failure> {
        let Some(commit) = self.commits.next() else { return Ok(None) };
        let batch = self.batch(&commit)?;
        self.done += 1;
        let place = format!("commit {}", commit.id);
        self.before = Some(commit.id);
        Ok(Some(Item { batch, identity: format!("git {}", self.first).into_bytes(), place }))
    }

    fn progress(&self) -> (u64, Option<u64>) {
        (self.done, Some(self.total))
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }
}

fn parse_commit(line: &[u8]) -> Option<Commit> {
    let line = String::from_utf8_lossy(line);
    let mut parts = line.trim_start_matches('\n').splitn(3, ' ');
    let id = parts.next()?.to_owned();
    let seconds: u64 = parts.next()?.parse().ok()?;
    Some(Commit { id, time_ms: seconds.checked_mul(1000)?, subject: parts.next().unwrap_or_default().to_owned() })
}

/// Reads `:OLDMODE NEWMODE OLDOBJECT NEWOBJECT STATUS\0PATH\0...`.
fn parse_entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut fields = bytes.split(|&byte| byte == 0);
    let mut entries = Vec::new();
    while let Some(head) = fields.next().filter(|head| !head.is_empty()) {
        let head = std::str::from_utf8(head).ok()?.strip_prefix(':')?;
        let words: Vec<&str> = head.split(' ').collect();
        let [_, mode, _, object, _] = words[..] else { return None };
        let gone = object.bytes().all(|digit| digit == b'0');
        let path = fields.next()?.to_vec();
        entries.push(Entry { path, object: (!gone).then(|| object.to_owned()), mode: mode.to_owned() });
    }
    Some(entries)
}

fn git<I, S>(dir: &Path, arguments: I) -> Result<Vec<u8>, Failure>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| no_git(&error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(Failure::usage(format!("{}: git says: {}", dir.display(), message.trim())))
}

fn no_git(error: &std::io::Error) -> Failure {
    Failure::usage(format!("the git command cannot be run: {error}")).hint("Install git, or load a file of JSON lines.")
}

/// A running `git cat-file --batch`, which gives objects one by one.
struct Blobs {
    child: Child,
    ask: Option<ChildStdin>,
    answer: BufReader<ChildStdout>,
}

enum Blob {
    Content(Vec<u8>),
    TooLong(usize),
}

impl Blobs {
    fn open(dir: &Path) -> Result<Self, Failure> {
        let mut command = Command::new("git");
        command.arg("-C").arg(dir).args(["cat-file", "--batch"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| no_git(&error))?;
        let ask = child.stdin.take();
        let answer =
            child.stdout.take().ok_or_else(|| Failure::new(Code::Unavailable, "git cat-file has no output"))?;
        Ok(Self { child, ask, answer: BufReader::new(answer) })
    }

    fn read(&mut self, object: &str, bytes_max: usize) -> Result<Blob, Failure> {
        self.exchange(object, bytes_max).map_err(|error| Failure::usage(format!("git object {object}: {error}")))
    }

    fn exchange(&mut self, object: &str, bytes_max: usize) -> std::io::Result<Blob> {
        let ask = self.ask.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(ask, "{object}")?;
        ask.flush()?;
        let mut head = String::new();
        self.answer.read_line(&mut head)?;
        let malformed = || std::io::Error::other(format!("git answers `{}`", head.trim()));
        let len: usize = head.split_ascii_whitespace().nth(2).and_then(|len| len.parse().ok()).ok_or_else(malformed)?;
        // A line end follows the content.
        if len > bytes_max {
            std::io::copy(&mut self.answer.by_ref().take(len as u64 + 1), &mut std::io::sink())?;
            return Ok(Blob::TooLong(len));
        }
        let mut content = vec![0; len + 1];
        self.answer.read_exact(&mut content)?;
        content.pop();
        Ok(Blob::Content(content))
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        drop(self.ask.take());
        // Its input has ended, so it ends: nothing is left to do if this fails.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn commit(dir: &Path, message: &str) {
        git(dir, ["add", "-A"]).expect("git add");
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"];
        git(dir, identity.into_iter().chain(["commit", "-q", "--allow-empty", "-m", message])).expect("git commit");
    }

    fn repository() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        git(dir.path(), ["init", "-q"]).expect("git is needed for this test");
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("a file can be written");
        write("a", b"one");
        write("with space", b"\n\0binary");
        commit(dir.path(), "first");
        write("a", b"two");
        fs::remove_file(dir.path().join("with space")).expect("it is there");
        write("big", &[7; 2000]);
        commit(dir.path(), "second: with a colon");
        commit(dir.path(), "empty");
        dir
    }

    fn changes(batch: &v1::Batch) -> Vec<(String, Option<Vec<u8>>)> {
        let operations = batch.operations.iter();
        operations
            .map(|operation| {
                let value = match &operation.change {
                    Some(Change::Put(value)) => Some(value.to_vec()),
                    _ => None,
                };
                (String::from_utf8_lossy(&operation.key).into_owned(), value)
            })
            .collect()
    }

    #[test]
    fn each_commit_is_one_batch() {
        let dir = repository();
        let params = Params { value_bytes_max: 1000, ..Params::default() };
        let mut commits = Commits::open(dir.path(), &params).expect("a repository");
        let mut batches = Vec::new();
        while let Some(item) = commits.next().expect("a commit") {
            batches.push(item.batch);
        }
        assert_eq!(batches.len(), 3);
        let first =
            vec![("a".to_owned(), Some(b"one".to_vec())), ("with space".to_owned(), Some(b"\n\0binary".to_vec()))];
        assert_eq!(changes(&batches[0]), first);
        let second =
            [("a".to_owned(), Some(b"two".to_vec())), ("big".to_owned(), None), ("with space".to_owned(), None)];
        assert_eq!(changes(&batches[1]), second);
        assert!(changes(&batches[2]).is_empty());
        assert!(String::from_utf8_lossy(&batches[1].metadata).contains("second: with a colon"));
        assert_eq!(commits.skipped().len(), 1);
        assert!(commits.skipped()[0].contains("big at ") && commits.skipped()[0].contains("2000 bytes"));
    }

    #[test]
    fn what_is_no_repository_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let failure = Commits::open(dir.path(), &Params::default()).err().expect("no repository");
        assert_eq!(failure.code, Code::Usage);
        assert!(failure.message.contains("git says"));
    }

    #[test]
    fn foreign_output_is_refused() {
        assert_eq!(parse_entries(b""), Some(Vec::new()));
        for bytes in [b"garbage\0path\0".as_slice(), b":1 2 3 4 M\0", b":1 2 3\0path\0"] {
            assert!(parse_entries(bytes).is_none_or(|entries| entries.iter().all(|entry| entry.path.is_empty())));
        }
    }
}
