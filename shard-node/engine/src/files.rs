//! The files of a data directory other than page files: their formats, and how they are read and
//! written.

pub(crate) mod dir;
pub(crate) mod meta_log;
pub(crate) mod superblock;
pub(crate) mod values;
