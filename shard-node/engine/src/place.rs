//! Places: pages and free pages, and references into the value log.

pub(crate) mod page;
pub(crate) mod refs;
pub(crate) mod space;
