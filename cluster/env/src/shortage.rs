//! Resources that a process may lack for a while, recognised by the errors of its calls.
//!
//! Such an error says nothing about the data. The call succeeds once others release the resource.
//! So it must not be treated as damage, as a missing file, or as the end of a replica.

use std::{
    error::Error,
    fmt,
    io::{self, ErrorKind},
    iter,
    sync::Arc,
};

use rustix::io::Errno;

/// The resource that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Space on the disk, or in a quota of it.
    Space,
    /// File descriptors, memory or threads.
    Handles,
}

impl Shortage {
    /// The shortage that an error of a storage, socket or thread reports; `None` for all other
    /// errors.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some(Self::Space),
            ErrorKind::OutOfMemory => Some(Self::Handles),
            _ => {
                let handles = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
                let errno = error.raw_os_error().map(Errno::from_raw_os_error);
                errno.filter(|errno| handles.contains(errno)).map(|_| Self::Handles)
            }
        }
    }

    /// The shortage that the first [`io::Error`] in the chain of causes reports.
    #[must_use]
    pub fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let io_error = |cause: &'_ (dyn Error + 'static)| {
            let shared = || cause.downcast_ref::<Arc<io::Error>>().map(|shared| Self::of(shared));
            cause.downcast_ref::<io::Error>().map(Self::of).or_else(shared)
        };
        iter::successors(Some(error), |&cause| cause.source()).find_map(io_error).flatten()
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Space => "the disk is full",
            Self::Handles => "file descriptors or memory ran out",
        })
    }
}

/// The kind of an error, by which a shortage can be told. `std` has no such kind for some
/// shortages.
pub(crate) fn kind(error: &io::Error) -> ErrorKind {
    match Shortage::of(error) {
        Some(Shortage::Space) => ErrorKind::StorageFull,
        Some(Shortage::Handles) => ErrorKind::OutOfMemory,
        None => error.kind(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer<E: Error + 'static>(#[source] E);

    #[test]
    fn a_shortage_is_told_from_other_errors_however_it_is_wrapped() {
        let raw = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
            assert_eq!(Shortage::of(&raw(errno)), Some(Shortage::Handles), "{errno}");
            assert_eq!(kind(&raw(errno)), ErrorKind::OutOfMemory, "{errno}");
        }
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            assert_eq!(Shortage::of(&raw(errno)), Some(Shortage::Space), "{errno}");
            assert_eq!(kind(&raw(errno)), ErrorKind::StorageFull, "{errno}");
        }
        for errno in [Errno::IO, Errno::NOENT, Errno::AGAIN, Errno::ACCESS] {
            assert_eq!(Shortage::of(&raw(errno)), None, "{errno}");
        }
        let named = || io::Error::new(ErrorKind::OutOfMemory, "a file");
        assert_eq!(Shortage::behind(&Outer(named())), Some(Shortage::Handles));
        assert_eq!(Shortage::behind(&Outer(Outer(Arc::new(named())))), Some(Shortage::Handles));
        assert_eq!(Shortage::behind(&Outer(raw(Errno::IO))), None);
    }
}
