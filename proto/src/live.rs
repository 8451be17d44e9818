//! Values made from files, and made again when the files change.
//!
//! The contents of the files are compared, not their times. Files may be replaced by renaming, by
//! links (as in Kubernetes volumes), or one after the other. Until all of them fit together again,
//! the value that was made last stays in force.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;

/// The pause between two reads of the files.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Largest file that is accepted.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The path of the file.
    pub path: PathBuf,
    /// The reason why it can't be read.
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

/// The newest value made from some files. Clones see the same value.
pub struct Live<T> {
    now: watch::Receiver<Arc<T>>,
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self { now: self.now.clone() }
    }
}

impl<T> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Live<T> {
    /// A value that never changes.
    #[must_use]
    pub fn fixed(value: T) -> Self {
        Self { now: watch::channel(Arc::new(value)).1 }
    }

    /// Makes a value from the contents of files, now and whenever they change. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If a file can't be read, or `make` fails for the present contents.
    pub fn keep<E: From<Unreadable> + fmt::Display + 'static>(
        paths: Vec<PathBuf>,
        make: impl Fn(&[Vec<u8>]) -> Result<T, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (mut files, live) = Files::open(paths, make)?;
        tokio::spawn(async move {
            while !files.told.is_closed() {
                tokio::time::sleep(LOOK_AGAIN).await;
                let look = tokio::task::spawn_blocking(move || {
                    files.look();
                    files
                });
                // This fails only when the process ends.
                let Ok(looked) = look.await else { return };
                files = looked;
            }
        });
        Ok(live)
    }

    /// The value in force now.
    #[must_use]
    pub fn now(&self) -> Arc<T> {
        self.now.borrow().clone()
    }

    /// The value in force now. [`changed`](Self::changed) then waits for the next one.
    #[must_use]
    pub fn take(&mut self) -> Arc<T> {
        self.now.borrow_and_update().clone()
    }

    /// Waits until the value in force is no longer the one that was taken last.
    pub async fn changed(&mut self) {
        if self.now.changed().await.is_err() {
            // The task that reads the files has ended, so no change will come.
            std::future::pending::<()>().await;
        }
    }
}

/// The files of a [`Live`] value, for an owner that decides itself when to read them.
pub struct Files<T, M> {
    paths: Vec<PathBuf>,
    make: M,
    /// The contents at the last look, or the error.
    seen: Result<Vec<Vec<u8>>, Unreadable>,
    told: watch::Sender<Arc<T>>,
}

impl<T, M> fmt::Debug for Files<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T, E, M> Files<T, M>
where
    E: From<Unreadable> + fmt::Display,
    M: Fn(&[Vec<u8>]) -> Result<T, E>,
{
    /// Makes the value from the present contents.
    ///
    /// # Errors
    /// If a file can't be read, or `make` fails for the contents.
    pub fn open(paths: Vec<PathBuf>, make: M) -> Result<(Self, Live<T>), E> {
        let contents = read(&paths)?;
        let (told, now) = watch::channel(Arc::new(make(&contents)?));
        Ok((Self { paths, make, seen: Ok(contents), told }, Live { now }))
    }

    /// Makes the value again if the files have changed. The old value stays if they don't fit
    /// together.
    pub fn look(&mut self) {
        let contents = read(&self.paths);
        if contents == self.seen {
            return;
        }
        let files = self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match contents.as_ref().map_err(ToString::to_string).and_then(|contents| {
            let made = (self.make)(contents);
            made.map_err(|error| error.to_string())
        }) {
            Ok(made) => {
                self.told.send_replace(Arc::new(made));
                tracing::info!(files, "the files have changed: the next connections use them");
            }
            Err(error) => {
                tracing::error!(
                    files,
                    error,
                    "the files have changed, and can't be used: what they held before stays in force"
                );
            }
        }
        self.seen = contents;
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, Unreadable> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let unreadable = |why: String| Unreadable { path: path.to_owned(), why };
    let length = std::fs::metadata(path).map(|metadata| metadata.len());
    if length.as_ref().is_ok_and(|length| *length > FILE_BYTES_MAX) {
        return Err(unreadable(format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    length.and_then(|_| std::fs::read(path)).map_err(|error| unreadable(error.to_string()))
}
