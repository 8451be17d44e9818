//! `coppice merge`: applies the changes between a base version and a right version to a left one.
//!
//! The ledger has one line of versions, and the three may be any of its versions. A right version
//! older than the base takes back what was written between them. The changes are streamed, and the
//! left version is read a few keys at a time. A client that trusts a key reads all three versions
//! with proofs. Then no change that is shown is false, but only the coordinator's word says that
//! none was left out.
//!
//! With `--apply` the changes become one batch. Its conditions say that head has the left version's
//! value of each key to write. So the batch is written completely, on the state that it was made
//! for, or not at all.

use coppice_client::{Client, Error};
use coppice_proto::v1;
use coppice_types::{Batch, Change, Condition, Operation, Params, Precondition, Reason};
use coppice_verify::hash::sha256;
use serde_json::{Map, Value, json};

use crate::{
    args::Merge,
    commands::{
        read::{put_value, standing},
        write::commit_batch,
    },
    failure::{Code, Failure},
    genesis::{Genesis, genesis},
    output::Output,
    text,
};

/// Most keys that are read at once.
const KEYS_MAX: u32 = 256;
/// Estimated bytes of a record in an answer, in addition to its value, proof included.
const RECORD_BYTES: u32 = 4096;
/// Estimated bytes of a key's condition in a message, in addition to the key.
const CONDITION_BYTES: usize = 64;
/// Characters of a value that people see.
const SHOWN_CHARS: usize = 72;

pub async fn merge(client: &Client, args: &Merge, trusting: bool, output: Output) -> Result<(), Failure> {
    let Genesis { params, .. } = genesis(client).await?;
    let mut run = Run {
        client,
        output,
        trusting,
        base: standing(client, args.base).await?,
        left: standing(client, args.left).await?,
        right: standing(client, args.right).await?,
        keys_max: keys_max(&params) as usize,
        batch: args.apply.then(Batch::default),
        batch_bytes_left: params.batch_bytes_max as usize,
        taken: 0,
        conflicts: 0,
    };
    run.compare().await?;
    let Run { taken, conflicts, batch, .. } = run;
    output.note(&json!({ "taken": taken, "conflicts": conflicts }), || {
        format!("{} taken, {conflicts} in conflict", text::count(taken, "key"))
    });
    if conflicts > 0 {
        let were = if conflicts == 1 { "was" } else { "were" };
        let message = format!("{} {were} changed on both sides, in different ways", text::count(conflicts, "key"));
        let hint =
            "Nothing was written. A key is no longer in conflict once the left version has the right version's value.";
        return Err(Failure::new(Code::NotFound, message).hint(hint));
    }
    match batch {
        Some(batch) if taken > 0 => commit_batch(client, batch, None, output).await,
        _ => Ok(()),
    }
}

/// A merge in progress. The three versions have their full names, so that every read is of the same
/// state, even if there is a rollback meanwhile.
struct Run<'c> {
    client: &'c Client,
    output: Output,
    trusting: bool,
    base: v1::Stamp,
    left: v1::Stamp,
    right: v1::Stamp,
    keys_max: usize,
    /// The batch to commit, with `--apply`.
    batch: Option<Batch>,
    batch_bytes_left: usize,
    taken: u64,
    conflicts: u64,
}

/// A key in the three versions.
struct Trio {
    base: v1::Record,
    left: v1::Record,
    right: v1::Record,
}

/// The outcome for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// The left version has the right value already.
    Stays,
    /// The right version's value is taken.
    Taken,
    /// Both sides changed the key, in different ways.
    Conflict,
}

/// Only the content counts: a key that was put again with the same value is unchanged.
fn judge<T: PartialEq>(base: T, left: T, right: T) -> Decision {
    if right == base || right == left {
        Decision::Stays
    } else if left == base {
        Decision::Taken
    } else {
        Decision::Conflict
    }
}

fn value(record: &v1::Record) -> Option<&[u8]> {
    record.found.then_some(&record.value[..])
}

/// Number of keys whose answer fits in a message, even with the longest values.
fn keys_max(params: &Params) -> u32 {
    (params.message_bytes_max / (params.value_bytes_max + params.key_bytes_max + RECORD_BYTES)).clamp(1, KEYS_MAX)
}

impl Run<'_> {
    async fn compare(&mut self) -> Result<(), Failure> {
        let request = v1::DiffRequest { from: Some(self.base), to: Some(self.right), ..v1::DiffRequest::default() };
        let mut stream = self.client.diff(request).await?;
        let mut group = Vec::with_capacity(self.keys_max);
        while let Some(message) = stream.next().await? {
            for difference in message.differences {
                let base = difference.before.ok_or(Error::Malformed("a difference without a before"))?;
                let right = difference.after.ok_or(Error::Malformed("a difference without an after"))?;
                group.push((base, right));
                if group.len() == self.keys_max {
                    self.judge_all(std::mem::take(&mut group)).await?;
                }
            }
        }
        self.judge_all(group).await
    }

    async fn judge_all(&mut self, group: Vec<(v1::Record, v1::Record)>) -> Result<(), Failure> {
        if group.is_empty() {
            return Ok(());
        }
        let key = |(base, right): &(v1::Record, v1::Record)| {
            if right.key.is_empty() { base.key.to_vec() } else { right.key.to_vec() }
        };
        let keys: Vec<Vec<u8>> = group.iter().map(key).collect();
        let (mut bases, mut rights): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        if self.trusting {
            bases = self.read(&keys, self.base).await?;
            rights = self.read(&keys, self.right).await?;
        }
        let lefts = self.read(&keys, self.left).await?;
        for (key, ((base, right), left)) in keys.iter().zip(bases.into_iter().zip(rights).zip(lefts)) {
            let trio = Trio { base, left, right };
            match judge(value(&trio.base), value(&trio.left), value(&trio.right)) {
                Decision::Stays => {}
                Decision::Taken => self.take(key, &trio)?,
                Decision::Conflict => self.conflict(key, &trio)?,
            }
        }
        Ok(())
    }

    async fn read(&self, keys: &[Vec<u8>], at: v1::Stamp) -> Result<Vec<v1::Record>, Failure> {
        let read = v1::ReadOptions { at: Some(at), ..v1::ReadOptions::default() };
        let request = v1::BatchGetRequest { keys: keys.iter().cloned().map(Into::into).collect(), read: Some(read) };
        let records = self.client.batch_get(request).await?.records;
        if records.len() != keys.len() {
            return Err(Error::Malformed("not a record for each key").into());
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], trio: &Trio) -> Result<(), Failure> {
        self.taken += 1;
        let object = self.object("taken", key, &[("value", &trio.right)])?;
        let shown = self.shown(&trio.right)?;
        let name = self.output.text(key)?;
        self.output.result(&object, || format!("{} {name}\t{shown}", if trio.right.found { '+' } else { '-' }))?;
        let Some(batch) = &mut self.batch else { return Ok(()) };
        let bytes = 2 * key.len() + trio.right.value.len() + CONDITION_BYTES;
        self.batch_bytes_left = self.batch_bytes_left.checked_sub(bytes).ok_or_else(too_large)?;
        let change = value(&trio.right).map_or(Change::Delete, |value| Change::Put(value.to_vec().into()));
        batch.operations.push(Operation { key: key.to_vec().into(), change });
        let condition = value(&trio.left).map_or(Condition::Absent, |value| Condition::ValueHash(sha256(value)));
        batch.preconditions.push(Precondition { key: key.to_vec(), condition });
        Ok(())
    }

    fn conflict(&mut self, key: &[u8], trio: &Trio) -> Result<(), Failure> {
        self.conflicts += 1;
        let sides = [("base", &trio.base), ("left", &trio.left), ("right", &trio.right)];
        let object = self.object("conflict", key, &sides)?;
        let name = self.output.text(key)?;
        let shown = [self.shown(&trio.base)?, self.shown(&trio.left)?, self.shown(&trio.right)?];
        self.output.result(&object, || {
            let [base, left, right] = shown;
            format!("! {name}\n    base\t{base}\n    left\t{left}\n    right\t{right}")
        })
    }

    /// One side of a conflict, for people.
    fn shown(&self, record: &v1::Record) -> Result<String, Failure> {
        let text = value(record).map(|value| self.output.brief(value, SHOWN_CHARS)).transpose()?;
        Ok(text.unwrap_or_else(|| "(not there)".to_owned()))
    }

    fn object(&self, kind: &str, key: &[u8], sides: &[(&str, &v1::Record)]) -> Result<Value, Failure> {
        let mut object = Map::from_iter([("merge".to_owned(), json!(kind))]);
        self.output.key(&mut object, key)?;
        for (side, record) in sides {
            let mut inner = Map::new();
            if record.found {
                put_value(&mut inner, self.output, record)?;
            }
            object.insert((*side).to_owned(), if record.found { Value::Object(inner) } else { Value::Null });
        }
        Ok(Value::Object(object))
    }
}

fn too_large() -> Failure {
    let failure = Failure {
        reason: Some(Reason::LimitExceeded),
        ..Failure::new(Code::Refused, "the merge with its conditions is larger than a batch may be")
    };
    failure.hint(
        "Nothing was written. Merge a right version nearer to the base first; `coppice header 0 --json` has the limit.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_judged_by_its_three_values() {
        let values = [None, Some("a"), Some("b"), Some("c")];
        for base in values {
            for left in values {
                for right in values {
                    let expected = match (left == base, right == base) {
                        (_, true) => Decision::Stays,
                        (true, false) => Decision::Taken,
                        (false, false) if left == right => Decision::Stays,
                        (false, false) => Decision::Conflict,
                    };
                    assert_eq!(judge(base, left, right), expected, "{base:?} {left:?} {right:?}");
                }
            }
        }
    }

    #[test]
    fn an_answer_fits_a_message() {
        let wide = Params { value_bytes_max: 16 << 20, message_bytes_max: 16 << 20, ..Params::default() };
        assert_eq!(keys_max(&wide), 1);
        let narrow = Params { value_bytes_max: 64, ..Params::default() };
        assert_eq!(keys_max(&narrow), KEYS_MAX);
        let params = Params::default();
        let answer = keys_max(&params) * (params.value_bytes_max + params.key_bytes_max + RECORD_BYTES);
        assert!(keys_max(&params) > 1 && answer <= params.message_bytes_max);
    }
}
