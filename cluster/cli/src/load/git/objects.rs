//! The objects of a git repository, as `git cat-file --batch` gives them.
//!
//! Invariant: reading a repository runs none of its programs, and no setting of the user, the
//! system or the repository changes what is read. One git process gives objects by name; it
//! converts, compares and shows nothing. Its environment is empty, so there are no `GIT_*`
//! variables, and no settings files except the repository's own. Of the repository's settings, only
//! the fetching of objects that a partial clone lacks could run a program. Fetching is switched
//! off, and no transport is allowed.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use crate::{failure::Failure, text};

/// The name of an object: its hash in hex.
pub(super) type Id = Arc<str>;

/// Longest commit or tree, in bytes.
const OBJECT_BYTES_MAX: usize = 256 << 20;
/// Longest line before an object, in bytes.
const HEAD_BYTES_MAX: u64 = 4096;
/// Longest file that points to a repository elsewhere, in bytes.
const LINK_BYTES_MAX: u64 = 8192;
/// Most bytes of git's error output that are kept.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// The whole environment of git, except PATH.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    // Git knows this variable from 2.45 on. Older versions stop at the empty list of transports.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LC_ALL", "C"),
];

/// A running `git cat-file --batch`.
pub(super) struct Objects {
    dir: PathBuf,
    child: Child,
    ask: Option<ChildStdin>,
    answer: BufReader<ChildStdout>,
    complaints: Option<JoinHandle<Vec<u8>>>,
}

/// An object of the expected kind.
pub(super) struct Object {
    pub id: Id,
    pub content: Vec<u8>,
}

/// A file's content, if it is not too long.
pub(super) enum Blob {
    Content(Vec<u8>),
    TooLong(usize),
}

/// The answer to a name.
enum Reply {
    Found { id: Id, kind: String, content: Blob },
    Missing,
}

impl Objects {
    /// Opens the repository at `dir`, or the one that contains it.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let repository = find(dir)?;
        let mut place = OsString::from("--git-dir=");
        place.push(&repository);
        let mut command = Command::new("git");
        command.env_clear().envs(ENVIRONMENT.iter().copied());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.arg(place).args(["--no-replace-objects", "-c", "core.fsmonitor=false", "cat-file", "--batch"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| no_git(&error))?;
        let (Some(ask), Some(answer), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three are piped")
        };
        let complaints = thread::spawn(move || first_bytes(stderr));
        let (answer, complaints) = (BufReader::new(answer), Some(complaints));
        Ok(Self { dir: dir.to_owned(), child, ask: Some(ask), answer, complaints })
    }

    /// The commit that is checked out; `None` if there is none yet.
    pub(super) fn head(&mut self) -> Result<Option<Object>, Failure> {
        match self.ask("HEAD^{commit}", OBJECT_BYTES_MAX)? {
            Reply::Missing => Ok(None),
            Reply::Found { id, kind, content } => self.expect("commit", id, &kind, content).map(Some),
        }
    }

    /// A commit or a tree; `None` if the repository does not have it.
    pub(super) fn get(&mut self, kind: &str, name: &str) -> Result<Option<Object>, Failure> {
        match self.ask(name, OBJECT_BYTES_MAX)? {
            Reply::Missing => Ok(None),
            Reply::Found { id, kind: found, content } => self.expect(kind, id, &found, content).map(Some),
        }
    }

    /// The content of a file; `None` if the repository does not have it.
    pub(super) fn blob(&mut self, name: &str, bytes_max: usize) -> Result<Option<Blob>, Failure> {
        match self.ask(name, bytes_max)? {
            Reply::Missing => Ok(None),
            Reply::Found { kind, content, .. } if kind == "blob" => Ok(Some(content)),
            Reply::Found { id, kind, .. } => Err(self.wrong(&format!("object {id} is a {kind}, not a blob"))),
        }
    }

    fn expect(&self, kind: &str, id: Id, found: &str, content: Blob) -> Result<Object, Failure> {
        match content {
            Blob::Content(content) if kind == found => Ok(Object { id, content }),
            Blob::Content(_) => Err(self.wrong(&format!("object {id} is a {found}, not a {kind}"))),
            Blob::TooLong(len) => Err(self.wrong(&format!("{found} {id} has {len} bytes"))),
        }
    }

    /// The failure for a repository with malformed content.
    pub(super) fn wrong(&self, what: &str) -> Failure {
        Failure::usage(format!("{}: {}", self.dir.display(), text::shorten(what, 300)))
            .hint("`git fsck` says more about a damaged repository.")
    }

    fn ask(&mut self, name: &str, bytes_max: usize) -> Result<Reply, Failure> {
        self.exchange(name, bytes_max).map_err(|error| {
            let mut said = String::new();
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe) {
                said = self.complaints();
            }
            let why = if said.is_empty() { error.to_string() } else { format!("git says: {said}") };
            self.wrong(&format!("{name}: {why}"))
        })
    }

    fn exchange(&mut self, name: &str, bytes_max: usize) -> io::Result<Reply> {
        let ask = self.ask.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(ask, "{name}")?;
        ask.flush()?;
        let mut head = Vec::new();
        self.answer.by_ref().take(HEAD_BYTES_MAX).read_until(b'\n', &mut head)?;
        if head.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let head = String::from_utf8_lossy(&head);
        let words: Vec<&str> = head.split(' ').collect();
        let (id, kind, len) = match words[..] {
            [.., "missing"] => return Ok(Reply::Missing),
            [id, kind, len] => (id, kind, len.parse::<usize>().ok()),
            _ => ("", "", None),
        };
        let len = len.ok_or_else(|| io::Error::other(format!("git answers `{head}`")))?;
        let content = if len > bytes_max {
            // The content is followed by a line feed.
            let left = len as u64 + 1;
            let skipped = io::copy(&mut self.answer.by_ref().take(left), &mut io::sink())?;
            if skipped < left {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Blob::TooLong(len)
        } else {
            let mut content = vec![0; len + 1];
            self.answer.read_exact(&mut content)?;
            content.pop();
            Blob::Content(content)
        };
        Ok(Reply::Found { id: id.into(), kind: kind.to_owned(), content })
    }

    /// Git's error output before it ended.
    fn complaints(&mut self) -> String {
        drop(self.ask.take());
        let said = self.complaints.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        drop(self.ask.take());
        // Git has no input any more. If killing it fails, there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn no_git(error: &io::Error) -> Failure {
    Failure::usage(format!("the git command cannot be run: {error}")).hint("Install git, or load a file of JSON lines.")
}

/// Reads a pipe to its end, and keeps the first bytes.
fn first_bytes(mut pipe: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    // A broken pipe counts as an ended one.
    let _ = pipe.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut pipe, &mut io::sink());
    kept
}

/// The directory of the repository at `dir`, or of the one that contains it. Git is not asked,
/// because it would refuse repositories of other users, which are harmless to a reader that runs
/// nothing.
fn find(dir: &Path) -> Result<PathBuf, Failure> {
    let start = fs::canonicalize(dir).map_err(|error| Failure::file(dir, &error))?;
    for place in start.ancestors() {
        let inner = place.join(".git");
        if inner.is_file() {
            return linked(place, &inner).map_err(|error| Failure::file(&inner, &error));
        }
        if let Some(found) = [inner.as_path(), place].into_iter().find(|candidate| is_repository(candidate)) {
            return Ok(found.to_owned());
        }
    }
    Err(Failure::usage(format!("{}: no git repository", dir.display())))
}

fn is_repository(dir: &Path) -> bool {
    dir.join("HEAD").symlink_metadata().is_ok() && (dir.join("objects").is_dir() || dir.join("commondir").is_file())
}

/// The repository of a second worktree or of a submodule: there, `.git` is a file that names it.
fn linked(place: &Path, file: &Path) -> io::Result<PathBuf> {
    let mut content = Vec::new();
    fs::File::open(file)?.take(LINK_BYTES_MAX).read_to_end(&mut content)?;
    let name = content.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end);
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it names no repository"))?;
    Ok(place.join(Path::new(std::ffi::OsStr::from_bytes(name))))
}
