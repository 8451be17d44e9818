//! The check of a version on the stream against its journal.

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::Digest;
use coppice_verify::{
    hash::{RecordBody, sha256_each},
    header::Header,
    journal,
};

use super::{ledger::Headed, options::Options, store::Writes};

/// The changes that a commit on the stream wrote, or `None` if they are unknown. With
/// [`Level::Proofs`](super::Level::Proofs), the whole journal shows the keys, and each value has
/// the hash in it. With [`Options::keys_only`], only the keys count.
///
/// # Errors
/// Names the contradiction between the version, its journal and its changes.
pub(super) fn writes_of(options: &Options, headed: &Headed) -> Result<Option<Writes>, String> {
    if headed.rolled_back {
        return Ok(None);
    }
    let value = |record: &v1::Record| (record.found && !options.keys_only).then(|| record.value.clone());
    let told: Writes = headed.changes.iter().map(|record| (record.key.clone(), value(record))).collect();
    if !options.level.proves() {
        return Ok(Some(told));
    }
    if headed.lists_gone {
        return Ok(None);
    }
    let journal = headed.journal.as_ref().ok_or("a version without its journal")?;
    let written =
        journal::written(&headed.header, &journal.entries, &journal.lists).map_err(|error| error.to_string())?;
    let mut written: Vec<(Bytes, RecordBody)> = written.into_iter().map(|(key, body)| (key.into(), body)).collect();
    written.retain(|(key, _)| !is_reserved(&headed.header, key));
    if options.keys_only {
        return Ok(Some(written.into_iter().map(|(key, _)| (key, None)).collect()));
    }
    join(told, written).map(Some)
}

/// The keys of the journal with the values of the stream, which must fit each other.
fn join(mut told: Writes, written: Vec<(Bytes, RecordBody)>) -> Result<Writes, String> {
    let mut writes = Writes::new();
    let mut hashed: Vec<(Bytes, Bytes, Digest)> = Vec::new();
    for (key, body) in written {
        match (body, told.remove(&key).flatten()) {
            (RecordBody::Tombstone, None) => {
                writes.insert(key, None);
            }
            (RecordBody::Tombstone, Some(_)) => {
                return Err(format!("the version deletes `{}`, and the ledger shows a value", key.escape_ascii()));
            }
            (RecordBody::Put { .. }, None) => {
                return Err(format!("the version writes `{}`, and the ledger shows no value", key.escape_ascii()));
            }
            (RecordBody::Put { value_len, value_hash }, Some(value)) => {
                if value.len() != value_len as usize {
                    return Err(altered(&key));
                }
                hashed.push((key, value, value_hash));
            }
        }
    }
    if let Some(key) = told.keys().next() {
        return Err(format!("the version does not write `{}`, and the ledger shows a change", key.escape_ascii()));
    }
    let values: Vec<&[u8]> = hashed.iter().map(|(_, value, _)| value.as_ref()).collect();
    let hashes = sha256_each(&values);
    for ((key, value, expected), hash) in hashed.into_iter().zip(hashes) {
        if hash != expected {
            return Err(altered(&key));
        }
        writes.insert(key, Some(value));
    }
    Ok(writes)
}

fn altered(key: &[u8]) -> String {
    format!("the version writes another value of `{}` than the ledger shows", key.escape_ascii())
}

/// Whether a key is of ledgers of members. The changes leave these out.
fn is_reserved(header: &Header, key: &[u8]) -> bool {
    // Only a ledger with such ledgers counts key changes in its headers.
    header.key_changes.is_some() && key.first().is_none_or(|first| *first == 0)
}
