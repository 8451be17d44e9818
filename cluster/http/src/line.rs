//! A batch as a line of JSON: the input of `coppice load` and of `POST /v1/batches`.

use coppice_proto::v1::{self, operation::Change};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The fields of a line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    time_ms: Option<u64>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    encoding: Encoding,
    #[serde(default)]
    put: Vec<(String, String)>,
    #[serde(default)]
    delete: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Utf8,
    Hex,
}

impl Encoding {
    fn decode(self, text: String) -> Result<bytes::Bytes, String> {
        match self {
            Self::Utf8 => Ok(text.into()),
            Self::Hex => {
                let digits = text.strip_prefix("0x").unwrap_or(&text);
                hex::decode(digits).map(Into::into).map_err(|error| format!("a text is not hex: {error}"))
            }
        }
    }
}

/// A batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Its puts, then its deletions. Each key has at least one byte.
    pub operations: Vec<v1::Operation>,
    /// `time_ms` and `note` for the metadata of the batch, if the line has one of them.
    pub notes: Map<String, Value>,
}

impl Line {
    /// Reads a line, without white space around it.
    ///
    /// # Errors
    /// Says what is wrong with it. The text has nothing of the line that could be longer than a
    /// name.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        // Serde would accept a list as the fields of an object in their order.
        if !line.starts_with(b"{") {
            return Err("a line is a JSON object, in braces".to_owned());
        }
        let fields: Fields = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let encoding = fields.encoding;
        let mut operations = Vec::with_capacity(fields.put.len() + fields.delete.len());
        for (key, value) in fields.put {
            let (key, value) = (encoding.decode(key)?, encoding.decode(value)?);
            operations.push(v1::Operation { key, change: Some(Change::Put(value)) });
        }
        for key in fields.delete {
            operations.push(v1::Operation { key: encoding.decode(key)?, change: Some(Change::Delete(true)) });
        }
        if operations.iter().any(|operation| operation.key.is_empty()) {
            return Err("a key must have at least one byte".to_owned());
        }
        let mut notes = Map::new();
        if fields.time_ms.is_some() || fields.note.is_some() {
            notes.insert("time_ms".to_owned(), json!(fields.time_ms));
            notes.insert("note".to_owned(), json!(fields.note));
        }
        Ok(Self { operations, notes })
    }
}
