//! Reads of keys: `get`, `range`, `history`, `diff`.

use std::path::Path;

use coppice_client::{Client, Error};
use coppice_proto::{
    convert,
    v1::{self, get_header_request::Which},
};
use coppice_types::{Stamp, escape::escape_lines};
use serde_json::{Map, Value, json};

use crate::{
    args::{self, At, Diff, Encoding, Get, History, Named, Range},
    bytes,
    failure::{Code, Failure},
    input,
    output::{Output, Table, file, raw, tell_line},
    text,
    time::moment,
};

pub async fn get(client: &Client, args: &Get, output: Output) -> Result<(), Failure> {
    let key = bytes::parse_key(&args.key)?;
    let (out, proof) = (args.out.as_deref(), args.proof.as_deref());
    if [out, proof].into_iter().flatten().filter(|file| input::is_standard(file)).count() + usize::from(args.raw) > 1 {
        return Err(Failure::usage("value and proof can't both go to standard output"));
    }
    let output = output.beside(out).beside(proof);
    let read = read_options(&args.at, args.proof.is_some(), args.cosigned)?;
    let response = client.get(v1::GetRequest { key: key.clone().into(), read: Some(read) }).await?;
    let record = response.record.ok_or(Error::Malformed("no record"))?;
    let at = response.read_at.ok_or(Error::Malformed("no version"))?;
    save(proof, &response.proof)?;
    let mut object = Map::from_iter([("found".to_owned(), json!(record.found))]);
    let encoding = output.key(&mut object, &key)?;
    object.insert("encoding".to_owned(), json!(encoding));
    if record.found {
        put_value(&mut object, output, &record)?;
    }
    put_stamp(&mut object, at);
    if record.found {
        return show_value(&record.value, &object, args, output);
    }
    if output.json {
        output.result(&Value::Object(object), String::new)?;
    } else {
        tell_line(&format!("coppice: `{}` is not there at version {}", output.text(&key)?, version(at)));
    }
    Err(Failure::new(Code::NotFound, "").silent())
}

/// Shows a value. Pipes and files get it unchanged, a terminal gets it escaped, line by line.
fn show_value(value: &[u8], object: &Map<String, Value>, args: &Get, output: Output) -> Result<(), Failure> {
    if let Some(out) = &args.out {
        file(out, value)?;
    }
    if output.json {
        return output.result(&Value::Object(object.clone()), String::new);
    }
    if args.out.is_some() {
        return Ok(());
    }
    let bare = args.raw || !(output.terminal || output.is_aside());
    let shown = match output.encoding {
        None if bare => return raw(value),
        None => escape_lines(value).to_string(),
        Some(Encoding::Utf8) if bare => return bytes::check(value).and_then(|()| raw(value)),
        Some(Encoding::Utf8) => bytes::check(value).map(|()| escape_lines(value).to_string())?,
        Some(Encoding::Hex) => output.text(value)?,
    };
    output.result(&Value::Null, || shown)
}

pub async fn range(client: &Client, args: &Range, trusting: bool, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.proof.as_deref());
    let (low, high) = bounds(args)?;
    let request = v1::RangeRequest {
        low: low.into(),
        high: high.map(Into::into),
        limit: args.limit.unwrap_or(0),
        read: Some(read_options(&args.at, args.proof.is_some(), args.cosigned)?),
        without_values: false,
        reverse: args.reverse,
    };
    let mut table = Table::new(output, if args.keys_only { &["KEY"] } else { &["KEY", "VALUE"] });
    if trusting {
        // The records are shown only once all of them are proven.
        let (records, end) = client.range_all(request).await?;
        records.iter().try_for_each(|record| print_record(record, args.keys_only, &mut table, output))?;
        table.end()?;
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
            print_record(record, args.keys_only, &mut table, output)?;
        }
        if let Some(end) = message.end {
            table.end()?;
            return range_end(&end, records, last_key, args, output);
        }
    }
    Err(Error::Malformed("the range breaks off").into())
}

/// The bounds of the range: LOW and HIGH, or those of a prefix. Without HIGH, the range goes to the
/// last key.
fn bounds(args: &Range) -> Result<(Vec<u8>, Option<Vec<u8>>), Failure> {
    if let Some(prefix) = &args.prefix {
        let low = bytes::parse(prefix)?;
        let high = after_prefix(&low);
        return Ok((low, high));
    }
    let part = |bound: &Option<String>| bound.as_deref().map(bytes::parse).transpose().map(Option::unwrap_or_default);
    let (low, high) = (part(&args.low)?, part(&args.high)?);
    if !high.is_empty() && low >= high {
        return Err(Failure::usage("the range is empty: LOW must be below HIGH"));
    }
    Ok((low, Some(high).filter(|high| !high.is_empty())))
}

/// The lowest key above all keys with this prefix; `None` if there is none.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut high = prefix[..=end].to_vec();
    high[end] += 1;
    Some(high)
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
    let bound = if args.reverse { "HIGH" } else { "LOW" };
    let next = end.more.then(|| {
        if !args.reverse {
            last_key.push(0);
        }
        format!("0x{}", hex::encode(&last_key))
    });
    let mut object = json!({ "records": records, "more": next.is_some(), "epoch": at.epoch, "version": at.version });
    object[if args.reverse { "next_high" } else { "next_low" }] = json!(next);
    output.note(&object, || {
        let more = next.map_or_else(String::new, |next| format!("; more records follow, from {bound} {next}"));
        format!("{} at version {}{more}", text::count(records, "record"), version(at))
    });
    Ok(())
}

fn print_record(record: &v1::Record, keys_only: bool, table: &mut Table, output: Output) -> Result<(), Failure> {
    let mut object = Map::new();
    let encoding = output.key(&mut object, &record.key)?;
    if keys_only {
        object.insert("encoding".to_owned(), json!(encoding));
        return table.row(&Value::Object(object), || Ok([output.text(&record.key)?]));
    }
    put_value(&mut object, output, record)?;
    table.row(&Value::Object(object), || Ok([output.text(&record.key)?, output.text(&record.value)?]))
}

pub async fn history(client: &Client, args: &History, output: Output) -> Result<(), Failure> {
    let key = bytes::parse_key(&args.key)?;
    let request = v1::HistoryRequest {
        key: key.clone().into(),
        limit: args.limit.unwrap_or(0),
        read: Some(read_options(&args.at, false, false)?),
    };
    let mut stream = client.history(request).await?;
    let (mut changes, mut truncated) = (0_u64, false);
    let mut table = Table::new(output, &["VERSION", "VALUE"]);
    while let Some(message) = stream.next().await? {
        truncated |= message.truncated;
        if let Some(change) = &message.change {
            changes += 1;
            print_change(&key, change, &mut table, output)?;
        }
    }
    table.end()?;
    if changes == 0 {
        let message = if truncated {
            "no change in the versions that are kept; earlier changes, if there were any, are gone"
        } else {
            "the key was never written"
        };
        return Err(Failure::new(Code::NotFound, message));
    }
    if truncated {
        output.note(&json!({ "truncated": true }), || {
            "older versions were pruned, and older changes with them, if there were any".to_owned()
        });
    }
    Ok(())
}

fn print_change(key: &[u8], change: &v1::Record, table: &mut Table, output: Output) -> Result<(), Failure> {
    let at = change.last_changed.ok_or(Error::Malformed("a change without a version"))?;
    let mut object = Map::from_iter([("found".to_owned(), json!(change.found))]);
    output.key(&mut object, key)?;
    if change.found {
        put_value(&mut object, output, change)?;
        object.remove("last_changed");
    }
    put_stamp(&mut object, at);
    table.row(&Value::Object(object), || {
        let value = if change.found { output.text(&change.value)? } else { "(deleted)".to_owned() };
        Ok([version(at).to_string(), value])
    })
}

pub async fn diff(client: &Client, args: &Diff, output: Output) -> Result<(), Failure> {
    let any_epoch = args.from.epoch.is_none();
    if any_epoch != args.to.epoch.is_none() {
        return Err(Failure::usage("name both versions with their epochs, or both without"));
    }
    let request = v1::DiffRequest {
        from: Some(stamp_of(args.from)),
        to: Some(stamp_of(args.to)),
        any_epoch,
        ..v1::DiffRequest::default()
    };
    let mut stream = client.diff(request).await?;
    let mut keys = 0_u64;
    let mut table = Table::new(output, &["", "KEY", "VALUE"]);
    while let Some(message) = stream.next().await? {
        for difference in message.differences {
            keys += 1;
            let before = difference.before.ok_or(Error::Malformed("a difference without a before"))?;
            let after = difference.after.ok_or(Error::Malformed("a difference without an after"))?;
            print_difference(&before, &after, &mut table, output)?;
        }
    }
    table.end()?;
    output.note(&json!({ "keys": keys }), || {
        format!("{} {}", text::count(keys, "key"), if keys == 1 { "differs" } else { "differ" })
    });
    Ok(())
}

fn print_difference(before: &v1::Record, after: &v1::Record, table: &mut Table, output: Output) -> Result<(), Failure> {
    let (name, sign) = match (before.found, after.found) {
        (false, _) => ("added", '+'),
        (true, true) => ("changed", '~'),
        (true, false) => ("deleted", '-'),
    };
    let key = if after.key.is_empty() { &before.key } else { &after.key };
    let mut object = Map::from_iter([("change".to_owned(), json!(name))]);
    output.key(&mut object, key)?;
    for (side, record) in [("before", before), ("after", after)] {
        let mut inner = Map::new();
        if record.found {
            put_value(&mut inner, output, record)?;
        }
        object.insert(side.to_owned(), if record.found { Value::Object(inner) } else { Value::Null });
    }
    let shown = if after.found { after } else { before };
    table.row(&Value::Object(object), || Ok([sign.to_string(), output.text(key)?, output.text(&shown.value)?]))
}

fn read_options(at: &At, want_proof: bool, cosigned: bool) -> Result<v1::ReadOptions, Failure> {
    let named = match (at.version, at.epoch) {
        (Some(named), Some(epoch)) if named.epoch.is_some_and(|other| other != epoch) => {
            return Err(Failure::usage("--version and --epoch name different epochs"));
        }
        (named, epoch) => named.map(|named| Named { epoch: named.epoch.or(epoch), ..named }),
    };
    let any_epoch = at.at_time.is_none() && named.is_none_or(|named| named.epoch.is_none());
    let (at_time_ms, at) = (at.at_time, named.map(stamp_of));
    Ok(v1::ReadOptions { at, any_epoch, want_proof, cosigned, at_time_ms, ..v1::ReadOptions::default() })
}

/// Shows which version was the newest at a time.
pub async fn time(client: &Client, args: &args::Time, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.proof.as_deref());
    let (time_ms, want_proof) = (args.at, args.proof.is_some());
    let told = client.time(v1::TimeRequest { time_ms, want_proof, cosigned: args.cosigned }).await?;
    let at = told.stamp.ok_or(Error::Malformed("no version"))?;
    save(args.proof.as_deref(), &told.proof)?;
    let next = told.next.map(|next| (next, told.next_timestamp_ms));
    let mut object = Map::from_iter([("time_ms".to_owned(), json!(time_ms))]);
    put_stamp(&mut object, at);
    object.insert("timestamp_ms".to_owned(), json!(told.timestamp_ms));
    let next_json = next.map(
        |(next, timestamp_ms)| json!({ "epoch": next.epoch, "version": next.version, "timestamp_ms": timestamp_ms }),
    );
    object.insert("next".to_owned(), json!(next_json));
    object.insert("final".to_owned(), json!(told.is_final));
    output.result(&Value::Object(object), || {
        let clock = |ms: u64| format!("{} ({ms} ms since 1970)", moment(ms));
        let next = next.map_or_else(
            || "none: the version is head".to_owned(),
            |(next, ms)| format!("version {}, committed {}", version(next), clock(ms)),
        );
        let is_final = match told.is_final {
            true => "yes: no later commit has a time up to then",
            false => "no: a later version may have a time up to then, too",
        };
        format!(
            "version    {}\ncommitted  {} by the ledger's clock\nnext       {next}\nfinal      {is_final}",
            version(at),
            clock(told.timestamp_ms)
        )
    })
}

/// A version as a message. Without an epoch, the request must say `any_epoch`.
fn stamp_of(named: Named) -> v1::Stamp {
    v1::Stamp { epoch: named.epoch.unwrap_or(0), version: named.version }
}

/// The full name of a version that stands.
///
/// # Errors
/// If the version does not stand, or stands in an epoch other than the named one.
pub(super) async fn standing(client: &Client, named: Named) -> Result<v1::Stamp, Failure> {
    let header = coppice_client::header(&client.header(Which::Version(named.version)).await?)?;
    let stamp = header.stamp;
    if stamp.version.0 != named.version {
        // A read of this stamp could be proven, and still be of a version that the user did not
        // name.
        return Err(Error::Untrusted("the header that was shown belongs to another version").into());
    }
    if named.epoch.is_some_and(|epoch| epoch != stamp.epoch.0) {
        let message = format!("version {} stands as {stamp}, not in the epoch that was named", named.version);
        return Err(Failure::new(Code::Refused, message).hint("`coppice log` shows the rollback."));
    }
    Ok(convert::to_stamp(stamp))
}

pub(super) fn put_value(object: &mut Map<String, Value>, output: Output, record: &v1::Record) -> Result<(), Failure> {
    let encoding = output.bytes(object, "value", &record.value)?;
    object.insert("encoding".to_owned(), json!(encoding));
    let changed = record.last_changed.map(|stamp| json!({ "epoch": stamp.epoch, "version": stamp.version }));
    object.insert("last_changed".to_owned(), changed.unwrap_or(Value::Null));
    Ok(())
}

pub(super) fn version(stamp: v1::Stamp) -> Stamp {
    Stamp::new(stamp.epoch, stamp.version)
}

pub(super) fn put_stamp(object: &mut Map<String, Value>, stamp: v1::Stamp) {
    object.insert("epoch".to_owned(), json!(stamp.epoch));
    object.insert("version".to_owned(), json!(stamp.version));
}

/// Writes a proof to the file that the command line names.
pub(super) fn save(path: Option<&Path>, proof: &[u8]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    if proof.is_empty() {
        return Err(Error::Malformed("no proof, though one was asked for").into());
    }
    file(path, proof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_key_above_a_prefix_ends_its_range() {
        assert_eq!(after_prefix(b"a/").as_deref(), Some(&b"a0"[..]));
        assert_eq!(after_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
