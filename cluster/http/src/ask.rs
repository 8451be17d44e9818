//! What a request asks for: its key, its query, and the headers that matter.
//!
//! All of it is read strictly. A parameter that is unknown, given twice, or malformed is refused,
//! because a request that is half understood might read another state or write without its
//! precondition.

use std::collections::BTreeMap;

use axum::http::{
    HeaderMap, HeaderName,
    header::{ACCEPT, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, ORIGIN},
    request::Parts,
};
use coppice_proto::{convert::to_stamp, status, v1};
use coppice_types::{Reason, Stamp};
use tonic::{Request, Status, metadata::MetadataMap};

/// The media type of proof files.
pub const PROOF: &str = "application/vnd.coppice.proof";
/// The prefix of the project's headers.
const OWN: &str = "coppice-";

/// The form of an answer that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The resource's own: the bytes of a value, or text.
    Plain,
    Json,
    Proof,
}

/// A refusal of a malformed request.
pub(crate) fn invalid(what: impl Into<String>) -> Status {
    status::refuse(Reason::InvalidArgument, what)
}

/// A part of a path or query without its percent signs.
pub(crate) fn decoded(text: &str) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(invalid("a percent sign stands before two hex digits; one that means itself is %25"));
        };
        bytes.push((high * 16 + low) as u8);
    }
    Ok(bytes)
}

/// Bytes for a path or query.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The key in a path.
pub(crate) fn key(text: &str) -> Result<Vec<u8>, Status> {
    let key = decoded(text)?;
    if key.is_empty() {
        return Err(invalid("a key must have at least one byte"));
    }
    Ok(key)
}

/// The lowest key above all keys with this prefix; `None` if there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut high = prefix[..=end].to_vec();
    high[end] += 1;
    Some(high)
}

/// A number that is written in digits alone.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A version, with its epoch if the text names one.
fn version(text: &str) -> Option<(Option<u64>, u64)> {
    match text.parse::<Stamp>() {
        Ok(stamp) => Some((Some(stamp.epoch.0), stamp.version.0)),
        Err(_) => number(text).map(|version| (None, version)),
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    head: &'a Parts,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(head: &'a Parts) -> Self {
        Self { head }
    }

    /// A call for the caller of this request. Its metadata is empty, whatever the headers say.
    pub(crate) fn call<T>(&self, message: T) -> Request<T> {
        Request::from_parts(MetadataMap::new(), self.head.extensions.clone(), message)
    }

    /// The parameters of the query, of which only these are known.
    pub(crate) fn query(&self, known: &[&'static str]) -> Result<Query, Status> {
        let mut values = BTreeMap::new();
        for part in self.head.uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(invalid(format!("a parameter is not known here; the known ones are: {known}")));
            };
            if values.insert(*name, decoded(value)?).is_some() {
                return Err(invalid(format!("{name} is given twice")));
            }
        }
        Ok(Query { values })
    }

    /// All headers.
    pub(crate) fn headers(&self) -> &'a HeaderMap {
        &self.head.headers
    }

    /// The header of this name, which may occur once.
    pub(crate) fn header(&self, name: &HeaderName) -> Result<Option<&'a str>, Status> {
        one(&self.head.headers, name)
    }

    /// The header of the project with this name, which may occur once.
    pub(crate) fn own_header(&self, name: &'static str) -> Result<Option<&'a str>, Status> {
        one(&self.head.headers, &HeaderName::from_static(name))
    }

    /// The first form among those that the caller accepts; weights are not read.
    pub(crate) fn form(&self) -> Form {
        let values = self.head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let forms = values.flat_map(|value| value.split(',')).map(|part| part.split(';').next().unwrap_or_default());
        let known = |kind: &str| match kind.trim() {
            kind if kind.eq_ignore_ascii_case(PROOF) => Some(Form::Proof),
            kind if kind.eq_ignore_ascii_case("application/json") => Some(Form::Json),
            _ => None,
        };
        forms.map(known).find_map(|form| form).unwrap_or(Form::Plain)
    }

    /// Checks that no page of a browser has sent this write. Pages of other origins can't send
    /// these headers without asking first, and nobody answers them. A page that has got the name of
    /// this server for itself states its origin.
    pub(crate) fn may_write(&self) -> Result<(), Status> {
        let headers = &self.head.headers;
        if headers.contains_key(ORIGIN) {
            return Err(status::refuse(
                Reason::Denied,
                "denied: a write of a page in a browser, which states its Origin",
            ));
        }
        let json = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(is_json);
        let own = headers.keys().any(|name| name.as_str().starts_with(OWN));
        if json || own || headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH) {
            return Ok(());
        }
        Err(invalid(
            "a write says its condition by If-None-Match: * or If-Match: \"EPOCH.VERSION\"; one without a condition says Coppice-Write: any",
        ))
    }
}

fn is_json(kind: &str) -> bool {
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Status> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(format!("the header {name} is given twice")));
    }
    value.to_str().map(Some).map_err(|_| invalid(format!("the header {name} is not text")))
}

/// The stamp in an entity tag: `"EPOCH.VERSION"`.
pub(crate) fn tag(text: &str) -> Result<Stamp, Status> {
    let inner = text.trim().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let stamp = inner.and_then(|text| text.parse().ok());
    stamp.ok_or_else(|| invalid("an entity tag is the version of a record's last change, in quotes: \"EPOCH.VERSION\""))
}

/// The parameters of a query.
#[derive(Debug)]
pub(crate) struct Query {
    values: BTreeMap<&'static str, Vec<u8>>,
}

impl Query {
    /// The bytes of a parameter.
    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.values.get(name).map(Vec::as_slice)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.bytes(name).map(|bytes| std::str::from_utf8(bytes).unwrap_or_default())
    }

    fn read<T>(&self, name: &str, kind: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Status> {
        let Some(text) = self.text(name) else { return Ok(None) };
        read(text).map(Some).ok_or_else(|| invalid(format!("{name} is not {kind}")))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        self.read(name, "a number", number)
    }

    /// Whether a parameter says `true`. It may also say `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Status> {
        let flag = self.read(name, "true or false", |text| text.parse().ok())?;
        Ok(flag.unwrap_or(false))
    }

    /// A version, and whether its epoch is any.
    pub(crate) fn version(&self, name: &str) -> Result<Option<(v1::Stamp, bool)>, Status> {
        let named = self.read(name, "VERSION or EPOCH.VERSION", version)?;
        Ok(named.map(|(epoch, version)| (v1::Stamp { epoch: epoch.unwrap_or(0), version }, epoch.is_none())))
    }

    /// The state to read, by `version`, `epoch`, `stale` and `cosigned`.
    pub(crate) fn read_options(&self) -> Result<v1::ReadOptions, Status> {
        let epoch = self.number("epoch")?;
        let (at, any_epoch) = match (self.version("version")?, epoch) {
            (None, None) => (None, true),
            (None, Some(_)) => return Err(invalid("epoch needs a version")),
            (Some((at, any)), None) => (Some(at), any),
            (Some((at, true)), Some(epoch)) => (Some(v1::Stamp { epoch, ..at }), false),
            (Some((at, false)), Some(epoch)) if at.epoch == epoch => (Some(at), false),
            (Some(_), Some(_)) => return Err(invalid("version and epoch name different epochs")),
        };
        let (stale_ok, cosigned) = (self.flag("stale")?, self.flag("cosigned")?);
        Ok(v1::ReadOptions { at, any_epoch, stale_ok, cosigned, ..v1::ReadOptions::default() })
    }

    /// The bounds of a range, by `low` and `high`, or by `prefix`.
    pub(crate) fn bounds(&self) -> Result<(Vec<u8>, Option<Vec<u8>>), Status> {
        let (low, high) = (self.bytes("low"), self.bytes("high"));
        let Some(prefix) = self.bytes("prefix") else {
            return Ok((low.unwrap_or_default().to_vec(), high.map(<[u8]>::to_vec)));
        };
        if low.is_some() || high.is_some() {
            return Err(invalid("prefix stands in place of low and high"));
        }
        Ok((prefix.to_vec(), after_prefix(prefix)))
    }
}

/// The stamp of a message, by its text.
pub(crate) fn text_of(stamp: v1::Stamp) -> String {
    Stamp::new(stamp.epoch, stamp.version).to_string()
}

/// A stamp as a message.
pub(crate) fn message_of(stamp: Stamp) -> v1::Stamp {
    to_stamp(stamp)
}

#[cfg(test)]
mod tests {
    use axum::http::Request as HttpRequest;

    use super::*;

    fn head(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = HttpRequest::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn every_key_has_a_spelling_and_bad_spellings_are_refused() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(key(&encoded(&all)).expect("it is encoded"), all);
        assert_eq!(key("a%2Fb%2fc+d").expect("a key"), b"a/b/c+d");
        for bad in ["", "%", "%2", "a%2", "%zz", "%+1", "%2%46", "%%"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_query_is_read_strictly() {
        let known = &["version", "epoch", "stale", "cosigned", "low", "high", "prefix"];
        let query = |uri: &str| Ask::new(&head(uri, &[])).query(known);
        let read = |uri: &str| query(uri).and_then(|query| query.read_options());
        let at = |uri: &str| read(uri).map(|read| (read.at.map(|at| (at.epoch, at.version)), read.any_epoch));
        assert_eq!(at("/v1/records").expect("head"), (None, true));
        assert_eq!(at("/v1/records?version=7").expect("a version"), (Some((0, 7)), true));
        assert_eq!(at("/v1/records?version=7&epoch=3").expect("both"), (Some((3, 7)), false));
        assert_eq!(at("/v1/records?version=3.7").expect("both in one"), (Some((3, 7)), false));
        assert!(read("/v1/records?stale=true&cosigned=false").expect("flags").stale_ok);
        for bad in [
            "?versions=1",
            "?version=1&version=1",
            "?version=",
            "?version=+1",
            "?version=-1",
            "?version=1e3",
            "?version=18446744073709551616",
            "?version=3.7&epoch=4",
            "?epoch=1",
            "?stale=1",
            "?stale",
            "?version=%ff",
            "?version=%",
            "?%76ersion=1",
        ] {
            assert!(read(&format!("/v1/records{bad}")).is_err(), "{bad}");
        }
        assert_eq!(
            query("/?prefix=a%ff").and_then(|query| query.bounds()).expect("it ends"),
            (b"a\xff".to_vec(), Some(b"b".to_vec()))
        );
        assert_eq!(
            query("/?prefix=%ff").and_then(|query| query.bounds()).expect("it is open"),
            (b"\xff".to_vec(), None)
        );
        assert!(query("/?prefix=a&low=a").and_then(|query| query.bounds()).is_err());
    }

    #[test]
    fn a_write_needs_a_header_that_no_page_can_send_unasked() {
        let may = |headers: &[(&str, &str)]| Ask::new(&head("/v1/records/k", headers)).may_write().is_ok();
        for good in [
            ("if-match", "\"0.1\""),
            ("if-none-match", "*"),
            ("coppice-write", "any"),
            ("content-type", "application/json; charset=utf-8"),
        ] {
            assert!(may(&[good]), "{good:?}");
            assert!(!may(&[good, ("origin", "null")]), "{good:?} by a page");
        }
        for bad in [
            ("content-type", "text/plain"),
            ("content-type", "application/jsonp"),
            ("x-coppice", "1"),
            ("accept", "*/*"),
        ] {
            assert!(!may(&[bad]), "{bad:?}");
        }
    }

    #[test]
    fn headers_and_tags_are_read_strictly() {
        let twice = head("/", &[("if-match", "\"0.1\""), ("if-match", "\"0.1\"")]);
        assert!(Ask::new(&twice).header(&IF_MATCH).is_err());
        assert_eq!(tag(" \"3.41\"").expect("a tag"), Stamp::new(3, 41));
        for bad in ["", "*", "3.41", "\"3.41", "W/\"3.41\"", "\"3\"", "\"3.41\", \"3.42\"", "\"+3.1\"", "\"3.41\"x"] {
            assert!(tag(bad).is_err(), "{bad}");
        }
        let form = |accept: &str| Ask::new(&head("/", &[("accept", accept)])).form();
        assert_eq!(form("*/*"), Form::Plain);
        assert_eq!(form("text/html, application/JSON;q=0.1"), Form::Json);
        assert_eq!(form("application/vnd.coppice.proof, application/json"), Form::Proof);
    }
}
