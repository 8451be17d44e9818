//! Reads of keys: `get`, `range`, `history`, `diff`.

use std::{fs, path::Path};

use coppice_client::{Client, Error};
use coppice_proto::v1;
use serde_json::{Map, Value, json};

use crate::{
    args::{At, Diff, Get, History, Range},
    failure::{Code, Failure},
    output::{Output, line},
    text,
};

/// Characters of a value that are shown to people in a list.
const SHOWN_CHARS: usize = 72;

/// `coppice get`.
///
/// # Errors
/// If the key is not there, or the read is refused.
pub async fn get(client: &Client, args: &Get, output: Output) -> Result<(), Failure> {
    let key = text::parse_key(&args.key)?;
    let read = read_options(&args.at, args.proof.is_some(), args.cosigned);
    let response = client.get(v1::GetRequest { key: key.clone().into(), read: Some(read) }).await?;
    let record = response.record.ok_or(Error::Malformed("no record"))?;
    let at = response.read_at.ok_or(Error::Malformed("no version"))?;
    save(args.proof.as_deref(), &response.proof)?;
    let mut object = Map::from_iter([("found".to_owned(), json!(record.found))]);
    let encoding = output.bytes(&mut object, "key", &key)?;
    object.insert("encoding".to_owned(), json!(encoding));
    if record.found {
        put_value(&mut object, output, &record)?;
    }
    put_stamp(&mut object, at);
    if record.found {
        let people = output.text(&record.value)?;
        return output.result(&Value::Object(object), || people);
    }
    if output.json {
        line(&Value::Object(object).to_string())?;
    } else {
        eprintln!("coppice: `{}` is not there at version {} of epoch {}", args.key, at.version, at.epoch);
    }
    Err(Failure::new(Code::NotFound, "").silent())
}

/// `coppice range`.
///
/// # Errors
/// If the read is refused or breaks off.
pub async fn range(client: &Client, args: &Range, trusting: bool, output: Output) -> Result<(), Failure> {
    let low = text::parse(&args.low)?;
    let high = text::parse(&args.high)?;
    if !high.is_empty() && low >= high {
        return Err(Failure::usage("the range is empty: LOW must be below HIGH"));
    }
    let request = v1::RangeRequest {
        low: low.into(),
        high: (!high.is_empty()).then(|| high.into()),
        limit: args.limit.unwrap_or(0),
        read: Some(read_options(&args.at, args.proof.is_some(), args.cosigned)),
    };
    if trusting {
        // Nothing is shown before all of it is proven.
        let (records, end) = client.range_all(request).await?;
        records.iter().try_for_each(|record| print_record(record, output))?;
        let last_key = records.last().map(|record| record.key.to_vec()).unwrap_or_default();
        return range_end(&end, records.len() as u64, last_key, args, output);
    }
    let mut stream = client.range(request).await?;
    let mut records = 0_u64;
    let mut last_key = Vec::new();
    while let Some(message) = stream.next().await? {
        for record in &message.records {
            records += 1;
            last_key = record.key.to_vec();
            print_record(record, output)?;
        }
        if let Some(end) = message.end {
            return range_end(&end, records, last_key, args, output);
        }
    }
    Err(Error::Malformed("the range breaks off").into())
}

fn range_end(
    end: &v1::RangeEnd,
    records: u64,
    mut last_key: Vec<u8>,
    args: &Range,
    output: Output,
) -> Result<(), Failure> {
    save(args.proof.as_deref(), &end.proof)?;
    let at = end.read_at.ok_or(Error::Malformed("no version"))?;
    let next = end.more.then(|| {
        last_key.push(0);
        format!("0x{}", hex::encode(&last_key))
    });
    let object = json!({ "records": records, "more": next.is_some(), "next_low": next, "epoch": at.epoch, "version": at.version });
    output.note(&object, || {
        let more = next.map_or_else(String::new, |next| format!("; more follow, from {next} on"));
        format!("{records} records at version {} of epoch {}{more}", at.version, at.epoch)
    });
    Ok(())
}

fn print_record(record: &v1::Record, output: Output) -> Result<(), Failure> {
    let mut object = Map::new();
    output.bytes(&mut object, "key", &record.key)?;
    put_value(&mut object, output, record)?;
    let (key, value) = (output.text(&record.key)?, output.text(&record.value)?);
    output.result(&Value::Object(object), || format!("{key}\t{}", text::shorten(&value, SHOWN_CHARS)))
}

/// `coppice history`.
///
/// # Errors
/// If the read is refused or breaks off.
pub async fn history(client: &Client, args: &History, output: Output) -> Result<(), Failure> {
    let key = text::parse_key(&args.key)?;
    let request = v1::HistoryRequest {
        key: key.clone().into(),
        limit: args.limit.unwrap_or(0),
        read: Some(read_options(&args.at, false, false)),
    };
    let mut stream = client.history(request).await?;
    let (mut changes, mut truncated) = (0_u64, false);
    while let Some(message) = stream.next().await? {
        truncated |= message.truncated;
        if let Some(change) = &message.change {
            changes += 1;
            print_change(&key, change, output)?;
        }
    }
    if changes == 0 {
        let message = if truncated {
            "no change in the versions that are kept; older ones were pruned"
        } else {
            "the key was never written"
        };
        return Err(Failure::new(Code::NotFound, message));
    }
    if truncated {
        output.note(&json!({ "truncated": true }), || "older changes were pruned".to_owned());
    }
    Ok(())
}

fn print_change(key: &[u8], change: &v1::Record, output: Output) -> Result<(), Failure> {
    let at = change.last_changed.ok_or(Error::Malformed("a change without a version"))?;
    let mut object = Map::from_iter([("found".to_owned(), json!(change.found))]);
    output.bytes(&mut object, "key", key)?;
    if change.found {
        put_value(&mut object, output, change)?;
        object.remove("last_changed");
    }
    put_stamp(&mut object, at);
    let value =
        if change.found { text::shorten(&output.text(&change.value)?, SHOWN_CHARS) } else { "(deleted)".to_owned() };
    output.result(&Value::Object(object), || format!("({}, {})\t{value}", at.epoch, at.version))
}

/// `coppice diff`.
///
/// # Errors
/// If the read is refused or breaks off.
pub async fn diff(client: &Client, args: &Diff, output: Output) -> Result<(), Failure> {
    let at = |version| Some(v1::Stamp { epoch: 0, version });
    let request =
        v1::DiffRequest { from: at(args.from), to: at(args.to), any_epoch: true, ..v1::DiffRequest::default() };
    let mut stream = client.diff(request).await?;
    let mut keys = 0_u64;
    while let Some(message) = stream.next().await? {
        for difference in message.differences {
            keys += 1;
            let before = difference.before.ok_or(Error::Malformed("a difference without a before"))?;
            let after = difference.after.ok_or(Error::Malformed("a difference without an after"))?;
            print_difference(&before, &after, output)?;
        }
    }
    output.note(&json!({ "keys": keys }), || format!("{keys} keys differ"));
    Ok(())
}

fn print_difference(before: &v1::Record, after: &v1::Record, output: Output) -> Result<(), Failure> {
    let (name, sign) = match (before.found, after.found) {
        (false, _) => ("added", '+'),
        (true, true) => ("changed", '~'),
        (true, false) => ("deleted", '-'),
    };
    let key = if after.key.is_empty() { &before.key } else { &after.key };
    let mut object = Map::from_iter([("change".to_owned(), json!(name))]);
    output.bytes(&mut object, "key", key)?;
    for (side, record) in [("before", before), ("after", after)] {
        let mut inner = Map::new();
        if record.found {
            put_value(&mut inner, output, record)?;
        }
        object.insert(side.to_owned(), if record.found { Value::Object(inner) } else { Value::Null });
    }
    let shown = if after.found { after } else { before };
    let (key, value) = (output.text(key)?, output.text(&shown.value)?);
    output.result(&Value::Object(object), || format!("{sign} {key}\t{}", text::shorten(&value, SHOWN_CHARS)))
}

fn read_options(at: &At, want_proof: bool, cosigned: bool) -> v1::ReadOptions {
    v1::ReadOptions {
        at: at.version.map(|version| v1::Stamp { epoch: at.epoch.unwrap_or(0), version }),
        any_epoch: at.epoch.is_none(),
        want_proof,
        stale_ok: false,
        cosigned,
    }
}

pub(super) fn put_value(object: &mut Map<String, Value>, output: Output, record: &v1::Record) -> Result<(), Failure> {
    let encoding = output.bytes(object, "value", &record.value)?;
    object.insert("encoding".to_owned(), json!(encoding));
    let changed = record.last_changed.map(|stamp| json!({ "epoch": stamp.epoch, "version": stamp.version }));
    object.insert("last_changed".to_owned(), changed.unwrap_or(Value::Null));
    Ok(())
}

fn put_stamp(object: &mut Map<String, Value>, stamp: v1::Stamp) {
    object.insert("epoch".to_owned(), json!(stamp.epoch));
    object.insert("version".to_owned(), json!(stamp.version));
}

/// Writes a proof where the command line says.
pub(super) fn save(path: Option<&Path>, proof: &[u8]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    if proof.is_empty() {
        return Err(Error::Malformed("no proof, though one was asked for").into());
    }
    fs::write(path, proof).map_err(|error| Failure::file(path, &error))
}
