//! `coppice watch`: shows the root log as it grows, with the changes of each commit.

use coppice_client::Client;
use coppice_http::forms::header_json;
use coppice_proto::v1;
use coppice_verify::header::{Body, Header};
use serde_json::{Map, Value, json};

use super::{
    log::log_row,
    read::{after_prefix, put_value},
};
use crate::{
    args::Watch,
    bytes,
    failure::Failure,
    output::{Output, Table},
};

/// The keys whose changes are shown.
enum Wanted {
    All,
    Key(Vec<u8>),
    From(Vec<u8>, Option<Vec<u8>>),
}

impl Wanted {
    fn parse(args: &Watch) -> Result<Self, Failure> {
        Ok(match (&args.key, &args.prefix) {
            (Some(key), _) => Self::Key(bytes::parse_key(key)?),
            (None, Some(prefix)) => {
                let low = bytes::parse(prefix)?;
                let high = after_prefix(&low);
                Self::From(low, high)
            }
            (None, None) => Self::All,
        })
    }

    fn has(&self, key: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Key(wanted) => wanted == key,
            Self::From(low, high) => low.as_slice() <= key && high.as_ref().is_none_or(|high| key < high.as_slice()),
        }
    }
}

pub async fn watch(client: &Client, args: &Watch, output: Output) -> Result<(), Failure> {
    let wanted = Wanted::parse(args)?;
    let from_sequence = match args.from {
        Some(from) => from,
        None => client.head().await?.log_size,
    };
    let request = v1::WatchHeadsRequest {
        from_sequence,
        follow: true,
        want_changed_keys: true,
        want_changed_values: args.values,
        want_journal: false,
    };
    let mut stream = client.watch(request).await?;
    let mut table = Table::new(output, &["VERSION", "TIME", "", "KEY", "VALUE"]).live(true);
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(message) = stream.next().await? else { break };
        let header = coppice_client::header(&message.header)?;
        for change in message.changes.iter().filter(|change| wanted.has(&change.key)) {
            show(&header, change, args.values, &mut table, output)?;
        }
        if message.continued {
            continue;
        }
        left -= 1;
        if header.body != Body::Commit || message.rolled_back {
            show_entry(&header, message.rolled_back, &mut table)?;
        }
    }
    table.end()
}

fn show(header: &Header, change: &v1::Record, values: bool, table: &mut Table, output: Output) -> Result<(), Failure> {
    let mut object = Map::from_iter([("found".to_owned(), json!(change.found))]);
    let encoding = output.key(&mut object, &change.key)?;
    object.insert("encoding".to_owned(), json!(encoding));
    if values && change.found {
        put_value(&mut object, output, change)?;
        object.remove("last_changed");
    }
    object.insert("epoch".to_owned(), json!(header.stamp.epoch.0));
    object.insert("version".to_owned(), json!(header.stamp.version.0));
    object.insert("sequence".to_owned(), json!(header.sequence.0));
    object.insert("timestamp_ms".to_owned(), json!(header.timestamp_ms));
    table.row(&Value::Object(object), || {
        let [_, _, version, time, _] = log_row(header);
        let value = if values && change.found { output.text(&change.value)? } else { String::new() };
        let sign = if change.found { "+" } else { "-" };
        Ok([version, time, sign.to_owned(), output.text(&change.key)?, value])
    })
}

/// Shows an entry that is not a commit, or a commit that was rolled back before its changes could
/// be read.
fn show_entry(header: &Header, rolled_back: bool, table: &mut Table) -> Result<(), Failure> {
    let mut object = header_json(header);
    object["rolled_back"] = json!(rolled_back);
    table.row(&object, || {
        let [_, kind, version, time, what] = log_row(header);
        let what = if rolled_back { "rolled back: its changes can't be read".to_owned() } else { what };
        Ok([version, time, "!".to_owned(), kind, what])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_other_keys_are_left_out() {
        let from = Wanted::From(b"a/".to_vec(), after_prefix(b"a/"));
        assert!(from.has(b"a/") && from.has(b"a/z") && !from.has(b"a") && !from.has(b"a0") && !from.has(b"b"));
        assert!(Wanted::From(b"\xff".to_vec(), None).has(b"\xff\xff"));
        assert!(Wanted::Key(b"k".to_vec()).has(b"k") && !Wanted::Key(b"k".to_vec()).has(b"kk") && Wanted::All.has(b""));
    }
}
