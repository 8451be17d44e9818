//! Places on disk: pages, free pages, and references into the value log.

pub(crate) mod bytes;
pub(crate) mod page;
pub(crate) mod refs;
pub(crate) mod space;
