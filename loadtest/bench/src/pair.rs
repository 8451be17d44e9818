//! Groups of two keys, one in each of two shards that are split at `m`. All operations of a group
//! touch only its keys.

use anyhow::{Context, Result, ensure};
use coppice_proto::v1;
use coppice_types::Stamp;

use crate::values;

/// The keys of a group.
pub fn keys(group: &str) -> [Vec<u8>; 2] {
    [format!("a/{group}").into_bytes(), format!("z/{group}").into_bytes()]
}

/// The result of reading one key: its token, "" for no value, and the last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub token: String,
    pub changed: Option<Stamp>,
}

/// Parses the answer to a read of a group.
///
/// # Errors
/// If the answer does not fit the question.
pub fn seen(group: &str, records: &[v1::Record]) -> Result<[Seen; 2]> {
    ensure!(records.len() == 2, "{} records, not 2", records.len());
    let mut pair = [Seen::default(), Seen::default()];
    for ((record, key), seen) in records.iter().zip(keys(group)).zip(&mut pair) {
        ensure!(record.key == key, "the answer has another key");
        if record.found {
            let changed = record.last_changed.as_ref().context("a record without a stamp")?;
            *seen = Seen {
                token: values::token(&record.value)?,
                changed: Some(Stamp::new(changed.epoch, changed.version)),
            };
        }
    }
    Ok(pair)
}
