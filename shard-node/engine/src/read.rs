//! Reads of one version, and of what lies between two.

pub(crate) mod footprint;
pub(crate) mod history;
pub(crate) mod proof;
pub(crate) mod three_way;
pub(crate) mod view;
