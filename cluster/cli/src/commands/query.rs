//! `query`: batches of queries, as JSON lines.
//!
//! The queries are sent in batches, and the answers of a batch are printed as they come. With
//! `--trust`, an answer is printed only once it is proven.

use std::path::Path;

use coppice_client::{Client, KeyState, QueryAnswer, QueryPart};
use coppice_proto::v1::{self, moment::Moment};
use coppice_types::{Bytes, Reason};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read::{put_stamp, put_value};
use crate::{
    args, bytes,
    failure::{Code, Failure},
    input,
    output::{Output, file, object},
    text, time,
};

/// Most keys of one batch, and most bytes of them.
const BATCH_KEYS_MAX: usize = 16_384;
const BATCH_BYTES_MAX: usize = 2 << 20;

/// A line of the input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    keys: Option<Vec<String>>,
    version: Option<u64>,
    time: Option<Time>,
    since_version: Option<u64>,
    since_time: Option<Time>,
    limit: Option<u32>,
}

/// A time as `--at-time` takes it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Time {
    Ms(u64),
    Text(String),
}

/// A query, with the number of its line.
struct Query {
    line: usize,
    query: v1::Query,
}

/// The directory for proofs, and the number of files in it.
struct Proofs<'a> {
    dir: &'a Path,
    count: usize,
}

pub async fn query(client: &Client, args: &args::Query, output: Output) -> Result<(), Failure> {
    let queries = read(&args.file)?;
    if let Some(dir) = &args.proof {
        std::fs::create_dir_all(dir).map_err(|error| Failure::file(dir, &error))?;
    }
    let mut proofs = args.proof.as_deref().map(|dir| Proofs { dir, count: 0 });
    let (mut asked, mut failed) = (0, 0);
    for batch in batches(queries) {
        asked += batch.iter().map(|query| query.query.keys.len()).sum::<usize>();
        let queries = batch.iter().map(|query| query.query.clone()).collect();
        let request = v1::QueryBatchRequest { queries, want_proof: proofs.is_some() };
        let mut stream = client.query_batch(request).await?;
        while let Some(part) = stream.next().await? {
            failed += part.answers.iter().filter(|answer| answer.outcome.is_err()).count();
            print(&batch, &part, proofs.as_mut(), output)?;
        }
    }
    if failed == 0 {
        return Ok(());
    }
    let message = format!("{failed} of {} got no answer, or no complete one", text::count(asked as u64, "key"));
    Err(Failure::new(Code::Refused, message).hint("The lines with `error` say why."))
}

/// The queries of a file, or of standard input.
fn read(path: &Path) -> Result<Vec<Query>, Failure> {
    let text = input::read(path)?;
    let mut queries = Vec::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let query = parse(line).map_err(|failure| failure.during(&format!("{} line {number}", text::path(path))))?;
        queries.push(Query { line: number, query });
    }
    if queries.is_empty() {
        return Err(Failure::usage(format!("{}: no query", text::path(path))));
    }
    Ok(queries)
}

fn parse(line: &[u8]) -> Result<v1::Query, Failure> {
    let hint = "`coppice query --help` shows what a line looks like.";
    let line: Line = serde_json::from_slice(line)
        .map_err(|error| Failure::usage(format!("no query: {}", text::safe(&error.to_string()))).hint(hint))?;
    let keys = match (line.key, line.keys) {
        (Some(key), None) => vec![key],
        (None, Some(keys)) if !keys.is_empty() => keys,
        _ => return Err(Failure::usage("a query has either `key` or `keys`").hint(hint)),
    };
    if keys.iter().any(|key| key.starts_with('@')) {
        return Err(Failure::usage("a key of a query can't be read from a file").hint("`text:@...` is a key with `@`."));
    }
    let keys = keys.iter().map(|key| bytes::parse_key(key).map(Bytes::from)).collect::<Result<Vec<_>, Failure>>()?;
    if keys.len() > BATCH_KEYS_MAX {
        return Err(Failure::usage(format!("a query has at most {BATCH_KEYS_MAX} keys")));
    }
    let since = moment(line.since_version, line.since_time)?;
    if since.is_none() && line.limit.is_some() {
        return Err(Failure::usage("`limit` needs `since_version` or `since_time`").hint(hint));
    }
    Ok(v1::Query { keys, at: moment(line.version, line.time)?, since, limit: line.limit.unwrap_or(0) })
}

fn moment(version: Option<u64>, time: Option<Time>) -> Result<Option<v1::Moment>, Failure> {
    let moment = match (version, time) {
        (None, None) => return Ok(None),
        (Some(version), None) => Moment::Version(version),
        (None, Some(Time::Ms(time_ms))) => Moment::TimeMs(time_ms),
        (None, Some(Time::Text(text))) => Moment::TimeMs(time::parse(&text).map_err(Failure::usage)?),
        (Some(_), Some(_)) => return Err(Failure::usage("a query names a version or a time, not both")),
    };
    Ok(Some(v1::Moment { moment: Some(moment) }))
}

/// The queries in batches that a cluster takes.
fn batches(queries: Vec<Query>) -> Vec<Vec<Query>> {
    let mut batches: Vec<Vec<Query>> = Vec::new();
    let (mut keys, mut bytes) = (0, 0);
    for query in queries {
        let (more, more_bytes) = (query.query.keys.len(), query.query.keys.iter().map(Bytes::len).sum::<usize>());
        (keys, bytes) = (keys + more, bytes + more_bytes);
        match batches.last_mut() {
            Some(batch) if keys <= BATCH_KEYS_MAX && bytes <= BATCH_BYTES_MAX => batch.push(query),
            _ => {
                (keys, bytes) = (more, more_bytes);
                batches.push(vec![query]);
            }
        }
    }
    batches
}

/// Prints the answers of a part, and writes its proofs.
fn print(
    batch: &[Query],
    part: &QueryPart,
    mut proofs: Option<&mut Proofs<'_>>,
    output: Output,
) -> Result<(), Failure> {
    for told in &part.times {
        let (Some(version), Some(proofs)) = (&told.version, proofs.as_deref_mut()) else { continue };
        let name = proofs.write(&version.proof)?;
        let mut row = Map::from_iter([("time_ms".to_owned(), json!(told.time_ms))]);
        if let Some(stamp) = version.stamp {
            put_stamp(&mut row, stamp);
        }
        row.insert("timestamp_ms".to_owned(), json!(version.timestamp_ms));
        row.insert("proof".to_owned(), json!(name));
        object(&Value::Object(row))?;
    }
    let name = match proofs {
        Some(proofs) if !part.proof.is_empty() => Some(proofs.write(&part.proof)?),
        _ => None,
    };
    part.answers.iter().try_for_each(|answer| print_answer(batch, answer, name.as_deref(), output))
}

fn print_answer(batch: &[Query], answer: &QueryAnswer, proof: Option<&str>, output: Output) -> Result<(), Failure> {
    let query = &batch[answer.query];
    let mut row = Map::from_iter([("line".to_owned(), json!(query.line))]);
    output.key(&mut row, &query.query.keys[answer.key])?;
    match &answer.outcome {
        Ok(KeyState { record, unchanged_since, read_at }) => {
            row.insert("found".to_owned(), json!(record.found));
            if record.found {
                put_value(&mut row, output, record)?;
            }
            put_stamp(&mut row, *read_at);
            row.insert("unchanged_since".to_owned(), json!(unchanged_since));
            if let Some(proof) = proof {
                row.insert("proof".to_owned(), json!(proof));
            }
        }
        Err(failure) => {
            let error = json!({ "reason": failure.reason.map(Reason::name), "message": failure.message });
            row.insert("error".to_owned(), error);
        }
    }
    row.insert("more".to_owned(), json!(answer.more));
    object(&Value::Object(row))
}

impl Proofs<'_> {
    /// Writes the next file. Returns its name.
    fn write(&mut self, proof: &[u8]) -> Result<String, Failure> {
        self.count += 1;
        let name = format!("{:06}.proof", self.count);
        file(&self.dir.join(&name), proof)?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_query_or_is_refused() {
        let query =
            parse(br#"{"keys": ["a", "0x0102"], "version": 9, "since_time": "1970-01-01T00:00:01Z", "limit": 3}"#)
                .expect("it is one");
        let moment = |moment| Some(v1::Moment { moment: Some(moment) });
        assert_eq!(query.keys, [&b"a"[..], &[1, 2]]);
        assert_eq!((query.at, query.since), (moment(Moment::Version(9)), moment(Moment::TimeMs(1000))));
        assert_eq!(query.limit, 3);
        assert_eq!(
            parse(br#"{"key": "a"}"#).expect("it is one"),
            v1::Query { keys: vec!["a".into()], ..Default::default() }
        );
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"key": "a", "keys": ["b"]}"#,
            r#"{"keys": []}"#,
            r#"{"key": ""}"#,
            r#"{"key": "@file"}"#,
            r#"{"key": "a", "version": 1, "time": 1}"#,
            r#"{"key": "a", "version": -1}"#,
            r#"{"key": "a", "time": "yesterday"}"#,
            r#"{"key": "a", "limit": 1}"#,
            r#"{"key": "a", "verison": 1}"#,
        ] {
            assert_eq!(parse(wrong.as_bytes()).expect_err(wrong).code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn batches_are_as_large_as_a_cluster_takes_them_and_keep_the_order() {
        let query = |line: usize, keys: usize, length: usize| {
            let keys = vec![Bytes::from(vec![7; length]); keys];
            Query { line, query: v1::Query { keys, ..Default::default() } }
        };
        let lines = |queries: Vec<Query>| -> Vec<Vec<usize>> {
            batches(queries).iter().map(|batch| batch.iter().map(|query| query.line).collect()).collect()
        };
        assert_eq!(lines(vec![query(1, 1, 1), query(2, 16_383, 1), query(3, 1, 1)]), [vec![1, 2], vec![3]]);
        assert_eq!(lines(vec![query(1, 4096, 512), query(2, 1, 1), query(3, 1, 1)]), [vec![1], vec![2, 3]]);
        assert!(lines(Vec::new()).is_empty());
    }
}
