//! The access log: denials and actions of administrators, one line each, in the process's log or in
//! a file of its own.
//!
//! - A denial names the caller (subject, serial number and fingerprint of the certificate, roles),
//!   the method, the address and the reason. Above a rate, denials are only counted, and the next
//!   line says how many were left out. So a hostile caller can't fill the log.
//! - An action ([`super::action`]) has a line before its effect and one after. Both are written at
//!   any rate and synced to disk, and callers wait for that. A line that can't be written goes to
//!   the process's log as an error.
//! - No line has the content of a call, except for the target, the reason and the claim of an
//!   action.
//!
//! A full file is kept as `<file>.1`, replacing an older one. So both files together are never
//! longer than twice [`FILE_BYTES_MAX`].

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_env::{Clock, SystemClock};
use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::step::Step;
use crate::{
    Code, Failure,
    identity::{Identity, Role},
};

/// Most denials that may be written at once.
const BURST: u32 = 100;
/// Time after which one more denial may be written.
const LINE_EVERY: Duration = Duration::from_millis(100);
/// Size at which a file is full.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest path of a method in a line, in characters.
const METHOD_CHARS_MAX: usize = 128;
/// Longest wait of an action for its line. The limit keeps a hanging disk from stopping an
/// administrator.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A call or connection that was denied.
#[derive(Debug)]
pub(crate) struct Denial<'a> {
    pub why: &'a str,
    /// `None` if the connection itself was refused.
    pub method: Option<&'a str>,
    pub address: Option<SocketAddr>,
    pub identity: Option<&'a Identity>,
}

/// Records denials and actions. Clones share the log.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

struct Shared {
    clock: SystemClock,
    rate: Mutex<Rate>,
    /// The thread that writes the file; `None` if lines go to the process's log.
    file: Option<mpsc::Sender<Entry>>,
}

/// A line for the file, and the sender that tells a waiting caller when it is on disk.
struct Entry {
    json: String,
    written: Option<oneshot::Sender<()>>,
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").field("file", &self.shared.file.is_some()).finish_non_exhaustive()
    }
}

impl AccessLog {
    /// A log whose lines go to the process's log, with target `coppice_access`.
    #[must_use]
    pub fn to_log() -> Self {
        Self::new(None)
    }

    /// A log whose lines go to a file, one JSON object each.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub fn to_file(path: &Path) -> Result<Self, Failure> {
        let lines = Lines::open(path, FILE_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
        let (sender, receiver) = mpsc::channel(BURST as usize);
        let path = path.display().to_string();
        let spawned =
            std::thread::Builder::new().name("access-log".to_owned()).spawn(move || keep(lines, receiver, &path));
        spawned.map_err(|error| Failure::new(Code::Unavailable, format!("no thread: {error}")))?;
        Ok(Self::new(Some(sender)))
    }

    fn new(file: Option<mpsc::Sender<Entry>>) -> Self {
        let clock = SystemClock::new();
        let rate = Mutex::new(Rate { left: BURST, since: clock.now(), suppressed: 0 });
        Self { shared: Arc::new(Shared { clock, rate, file }) }
    }

    /// Records a denial.
    pub(crate) fn record(&self, denial: &Denial<'_>) {
        let Shared { clock, rate, file } = &*self.shared;
        let Some(suppressed) = rate.lock().unwrap_or_else(PoisonError::into_inner).take(clock.now()) else { return };
        let line = Line::of(denial, clock.wall_ms(), suppressed);
        let Some(file) = file else { return line.log() };
        let json = serde_json::to_string(&line).expect("a line has names and numbers only");
        if file.try_send(Entry { json, written: None }).is_err() {
            // The disk is slower than the rate.
            rate.lock().unwrap_or_else(PoisonError::into_inner).suppressed += suppressed + 1;
        }
    }

    /// The time of a line, in ms since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.shared.clock.wall_ms()
    }

    /// Writes a step of an action, and waits until it is on disk.
    pub(super) async fn write(&self, step: &Step<'_>) {
        let Some(file) = &self.shared.file else { return step.log() };
        let (written, done) = oneshot::channel();
        let write = async {
            file.send(Entry { json: step.json(), written: Some(written) }).await.is_ok() && done.await.is_ok()
        };
        if timeout(WRITE_TIMEOUT, write).await != Ok(true) {
            step.not_written();
        }
    }

    /// Writes a step of an action without waiting for it.
    pub(super) fn post(&self, step: &Step<'_>) {
        let Some(file) = &self.shared.file else { return step.log() };
        if file.try_send(Entry { json: step.json(), written: None }).is_err() {
            step.not_written();
        }
    }
}

/// Writes the lines of the channel until all senders are gone.
fn keep(mut lines: Lines, mut entries: mpsc::Receiver<Entry>, path: &str) {
    while let Some(Entry { json, written }) = entries.blocking_recv() {
        let done = lines.write(&json).and_then(|()| if written.is_some() { lines.file.sync_data() } else { Ok(()) });
        match (done, written) {
            // The caller may have gone; then nobody needs to be told.
            (Ok(()), Some(written)) => drop(written.send(())),
            (Ok(()), None) => {}
            (Err(error), _) => {
                tracing::warn!(file = path, %error, line = json, "a line of the access log could not be written")
            }
        }
    }
}

/// Limits how many denials are written.
#[derive(Debug)]
struct Rate {
    left: u32,
    /// When the last of the allowed lines was earned.
    since: Duration,
    suppressed: u64,
}

impl Rate {
    /// Allows a line, and returns how many were left out before it; `None` if there is no line.
    fn take(&mut self, now: Duration) -> Option<u64> {
        let earned = now.saturating_sub(self.since).as_millis() / LINE_EVERY.as_millis();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.since += LINE_EVERY.saturating_mul(earned);
        self.left = self.left.saturating_add(earned).min(BURST);
        if self.left == 0 {
            self.suppressed += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The line of a denial.
#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    subject: &'a str,
    serial: &'a str,
    fingerprint: &'a str,
    roles: Vec<&'static str>,
    /// Number of denials before this one that were not written.
    suppressed: u64,
}

impl<'a> Line<'a> {
    fn of(denial: &Denial<'a>, time_ms: u64, suppressed: u64) -> Self {
        let Denial { why, method, address, identity } = *denial;
        let text = |part: fn(&Identity) -> &str| identity.map_or("", part);
        Self {
            time_ms,
            why,
            method: method.map(|method| method.chars().take(METHOD_CHARS_MAX).collect()),
            address,
            subject: text(|identity| &identity.subject),
            serial: text(|identity| &identity.serial),
            fingerprint: text(|identity| &identity.fingerprint),
            roles: identity.map_or_else(Vec::new, |identity| identity.roles.iter().map(Role::name).collect()),
            suppressed,
        }
    }

    fn log(&self) {
        let Self { why, subject, serial, fingerprint, suppressed, .. } = self;
        let (from, roles) = (self.address.map(tracing::field::display), self.roles.join(","));
        match &self.method {
            None => tracing::warn!(target: "coppice_access", from, why, suppressed, "a connection was refused: TLS"),
            Some(method) => tracing::warn!(
                target: "coppice_access", from, method, why, subject, serial, fingerprint, roles, suppressed, "a call was denied"
            ),
        }
    }
}

/// A file of lines. When it is full, it is renamed and a new one begun.
struct Lines {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl Lines {
    fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64 + 1;
        if self.bytes > 0 && self.bytes + bytes > self.bytes_max {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(&self.path, aside)?;
            *self = Self::open(&self.path, self.bytes_max)?;
        }
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let mut rate = Rate { left: BURST, since: Duration::ZERO, suppressed: 0 };
        let flood = |rate: &mut Rate, at: Duration| (0..1000).filter_map(|_| rate.take(at)).collect::<Vec<_>>();
        assert_eq!(flood(&mut rate, Duration::ZERO), vec![0; BURST as usize]);
        let second = flood(&mut rate, Duration::from_secs(1));
        assert_eq!(second.len(), 10, "ten more in a second");
        assert_eq!(second[0], 1000 - u64::from(BURST), "the next line says how many were not written");
        let later = flood(&mut rate, Duration::from_secs(1_000_000));
        assert_eq!((later.len(), later[0]), (BURST as usize, 990));
    }

    #[test]
    fn a_full_file_is_kept_aside_and_both_are_bounded() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("access");
        let mut lines = Lines::open(&path, 100).expect("it can be made");
        for number in 0..53 {
            lines.write(&format!("line {number:04}")).expect("it can be written");
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            assert!(length(&path) <= 100 && length(&dir.path().join("access.1")) <= 100);
        }
        drop(lines);
        let mut lines = Lines::open(&path, 100).expect("it can be opened again");
        lines.write("the last").expect("it can be written");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.ends_with("line 0052\nthe last\n"), "{text}");
    }
}
