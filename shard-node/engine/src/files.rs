//! The files of a data directory, but for those of pages.

pub(crate) mod dir;
pub(crate) mod meta_log;
pub(crate) mod superblock;
pub(crate) mod values;
