//! Routes keys, forms versions, runs the commit protocol, signs checkpoints.

pub mod plan;
