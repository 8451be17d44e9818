//! Reads of one version, and comparisons of versions.

pub(crate) mod footprint;
pub(crate) mod history;
pub(crate) mod nodes;
pub(crate) mod proof;
pub(crate) mod three_way;
pub(crate) mod view;
