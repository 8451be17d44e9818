//! Proof files that share their log part, which is the same in all files of one checkpoint.
//!
//! Nothing is checked here: a joined file is decoded and verified like any other.

use alloc::vec::Vec;

use coppice_types::codec::{Error, Reader};

use super::{LogPart, MAGIC};

/// Bytes of a file before its log part: magic, format, kind and cluster.
const BEFORE_LOG: usize = MAGIC.len() + 2 + 16;

/// Splits a proof file into its log part and the rest of it.
///
/// # Errors
/// If the file ends early, or its log part is malformed.
pub fn split_log(file: &[u8]) -> Result<(&[u8], Vec<u8>), Error> {
    let (before, from) = file.split_at_checked(BEFORE_LOG).ok_or(Error::Truncated)?;
    let mut input = Reader::new(from);
    LogPart::decode(&mut input)?;
    let (log, after) = from.split_at(from.len() - input.remaining());
    Ok((log, [before, after].concat()))
}

/// Joins what [`split_log`] has split. Bytes that are no part of a file give bytes that are no
/// file.
#[must_use]
pub fn join_log(log: &[u8], rest: &[u8]) -> Vec<u8> {
    let (before, after) = rest.split_at(rest.len().min(BEFORE_LOG));
    [before, log, after].concat()
}

#[cfg(test)]
mod tests {
    use coppice_types::{Change, ClusterId, Operation, Params};

    use super::*;
    use crate::{
        proof::FILE_BYTES_MAX,
        replay::{Commit, Ledger},
        shard_map::ShardMap,
    };

    #[test]
    fn files_of_one_checkpoint_share_their_log_part_and_join_to_what_they_were() {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        ledger.rotate(&[2; 32]);
        let put = |key: &'static [u8]| Operation { key: key.into(), change: Change::Put(key.into()) };
        let operations = Vec::from([put(b"a"), put(b"b")]);
        ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("a batch");
        let time_ms = ledger.newest().timestamp_ms;
        let keys = |key: &'static [u8]| ledger.prove_keys(ledger.head(), &[key], true);
        let files = [keys(b"a"), keys(b"c"), ledger.prove_time(time_ms)].map(|file| file.encode().expect("small"));
        let (shared, _) = split_log(&files[0]).expect("a file");
        assert!(shared.len() > 200, "it has the checkpoint and a header");
        for file in &files {
            let (log, rest) = split_log(file).expect("a file");
            assert_eq!((log, rest.len()), (shared, file.len() - shared.len()));
            assert_eq!(join_log(log, &rest), *file);
        }
        for end in 0..BEFORE_LOG + shared.len() {
            assert!(split_log(&files[0][..end]).is_err(), "{end} bytes");
        }
        assert!(join_log(b"", b"").is_empty() && join_log(b"log", &[0; 40]).len() < FILE_BYTES_MAX);
    }
}
