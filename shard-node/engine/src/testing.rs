//! What tests of the inside do to an engine.

use coppice_types::{Operation, Stamp};

use crate::{Engine, PrepareId, StageRequest, Staged};

/// The version that follows, staged on the decided one with all merges that are built.
pub(crate) fn stage(engine: &mut Engine, version: u64, mut operations: Vec<Operation>) -> Staged {
    operations.sort_by(|a, b| a.key.cmp(&b.key));
    let request = StageRequest {
        stamp: Stamp::new(0, version),
        prepare_id: PrepareId { term: 1, attempt: version },
        base: engine.decided(),
        merges: &engine.built_merges(),
        operations: &operations,
    };
    engine.stage(&request).expect("it follows on the decided state")
}

/// The version that follows, decided.
pub(crate) fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
    let staged = stage(engine, version, operations);
    engine.settle(&staged.state).expect("it is staged");
}
