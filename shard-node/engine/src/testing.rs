//! Helpers for unit tests of the engine.

use coppice_types::{Operation, Stamp, Term};

use crate::{Engine, PrepareId, StageRequest, Staged};

/// Stages the next version on the decided one, and installs all built merges.
pub(crate) fn stage(engine: &mut Engine, version: u64, mut operations: Vec<Operation>) -> Staged {
    operations.sort_by(|a, b| a.key.cmp(&b.key));
    let request = StageRequest {
        stamp: Stamp::new(0, version),
        prepare_id: PrepareId { term: Term(1), attempt: version },
        base: engine.decided(),
        merges: &engine.built_merges(),
        operations: &operations,
    };
    engine.stage(&request).expect("it follows on the decided state")
}

/// Stages and settles the next version.
pub(crate) fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
    let staged = stage(engine, version, operations);
    engine.settle(&staged.state).expect("it is staged");
}
