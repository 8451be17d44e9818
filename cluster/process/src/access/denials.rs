//! The record of denials: one line each, to the log or to a file of its own, never more than a hostile caller may cost.
//!
//! A line says who (subject, serial number and fingerprint of the certificate, its roles), what, from where, and why; nothing of what a call carried.
//! Beyond a rate, denials are counted and not written: the next line says how many. A file that is full is kept as `<file>.1`, in place of an
//! older one, so both together are never longer than twice [`FILE_BYTES_MAX`].

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use coppice_env::{Clock, SystemClock};
use serde::Serialize;

use super::certificate::{Identity, Role};
use crate::{Code, Failure};

/// Lines that may be written at once.
const BURST: u32 = 100;
/// How often there may be one more.
const LINE_EVERY: Duration = Duration::from_millis(100);
/// A file that is longer is kept aside.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest path of a method that is written.
const METHOD_CHARS_MAX: usize = 128;

/// A call or connection that was denied.
#[derive(Debug)]
pub(crate) struct Denial<'a> {
    pub why: &'a str,
    /// `None`: the connection.
    pub method: Option<&'a str>,
    pub address: Option<SocketAddr>,
    pub identity: Option<&'a Identity>,
}

/// Takes note of denials. Clones are the same.
#[derive(Clone)]
pub struct Denials {
    shared: Arc<Shared>,
}

struct Shared {
    clock: SystemClock,
    rate: Mutex<Rate>,
    /// The thread that writes the file; `None`: to the log.
    file: Option<mpsc::SyncSender<String>>,
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials").field("file", &self.shared.file.is_some()).finish_non_exhaustive()
    }
}

impl Denials {
    /// They go to the log, with target `coppice_denials`.
    #[must_use]
    pub fn to_log() -> Self {
        Self::new(None)
    }

    /// They go to a file, one JSON object a line.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn to_file(path: &Path) -> Result<Self, Failure> {
        let mut lines = Lines::open(path, FILE_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
        let (sender, receiver) = mpsc::sync_channel::<String>(BURST as usize);
        let path = path.display().to_string();
        let work = move || {
            for line in receiver {
                if let Err(error) = lines.write(&line) {
                    tracing::warn!(file = path, %error, line, "a denial could not be written");
                }
            }
        };
        let spawned = std::thread::Builder::new().name("denials".to_owned()).spawn(work);
        spawned.map_err(|error| Failure::new(Code::Unavailable, format!("no thread: {error}")))?;
        Ok(Self::new(Some(sender)))
    }

    fn new(file: Option<mpsc::SyncSender<String>>) -> Self {
        let clock = SystemClock::new();
        let rate = Mutex::new(Rate { left: BURST, since: clock.now(), suppressed: 0 });
        Self { shared: Arc::new(Shared { clock, rate, file }) }
    }

    /// Takes note of a denial.
    pub(crate) fn record(&self, denial: &Denial<'_>) {
        let Shared { clock, rate, file } = &*self.shared;
        let Some(suppressed) = rate.lock().unwrap_or_else(PoisonError::into_inner).take(clock.now()) else { return };
        let line = Line::of(denial, clock.wall_ms(), suppressed);
        let Some(file) = file else { return line.log() };
        let json = serde_json::to_string(&line).expect("a line has names and numbers only");
        if file.try_send(json).is_err() {
            // The disk is slower than the rate.
            rate.lock().unwrap_or_else(PoisonError::into_inner).suppressed += suppressed + 1;
        }
    }
}

/// How many lines may be written.
#[derive(Debug)]
struct Rate {
    left: u32,
    /// When the last of them was earned.
    since: Duration,
    suppressed: u64,
}

impl Rate {
    /// Whether there may be a line now; then how many were suppressed before it.
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

/// What is written of a denial.
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
    /// So many before it were not written.
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
            None => tracing::warn!(target: "coppice_denials", from, why, suppressed, "a connection was refused: TLS"),
            Some(method) => tracing::warn!(
                target: "coppice_denials", from, method, why, subject, serial, fingerprint, roles, suppressed, "a call was denied"
            ),
        }
    }
}

/// A file of lines that is kept aside when it is full.
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
        let path = dir.path().join("denials");
        let mut lines = Lines::open(&path, 100).expect("it can be made");
        for number in 0..53 {
            lines.write(&format!("line {number:04}")).expect("it can be written");
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            assert!(length(&path) <= 100 && length(&dir.path().join("denials.1")) <= 100);
        }
        drop(lines);
        let mut lines = Lines::open(&path, 100).expect("it can be opened again");
        lines.write("the last").expect("it can be written");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.ends_with("line 0052\nthe last\n"), "{text}");
    }
}
