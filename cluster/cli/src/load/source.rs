//! Sources of batches: the inputs of a load.

use coppice_proto::v1;

use crate::failure::Failure;

/// One batch of the input.
#[derive(Debug)]
pub(crate) struct Item {
    pub batch: v1::Batch,
    /// The bytes that name the session, if this is the first item.
    pub identity: Vec<u8>,
    /// The batch's place in the input, for messages.
    pub place: String,
}

/// An input that gives batches in order.
pub(crate) trait Source {
    /// The next batch; `None` at the end.
    fn next(&mut self) -> Result<Option<Item>, Failure>;

    /// The amount of input that has been read, and the total if it is known.
    fn progress(&self) -> (u64, Option<u64>);

    /// Parts of the input that were left out, with the reasons.
    fn skipped(&self) -> &[String];
}
