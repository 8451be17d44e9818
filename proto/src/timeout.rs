//! The time for which a call's answer is of use to its caller, in gRPC's notation: up to eight
//! digits and a unit.

use std::time::Duration;

use tonic::{
    codegen::http::{self, HeaderValue},
    metadata::MetadataMap,
};

/// The header that carries the limit.
pub(crate) const HEADER: &str = "grpc-timeout";
/// Most digits.
const DIGITS_MAX: usize = 8;
/// The largest number with that many digits.
const MS_MAX: u64 = 99_999_999;

/// The time that the caller waits; `None` if it does not say.
#[must_use]
pub fn asked(metadata: &MetadataMap) -> Option<Duration> {
    of(metadata.as_ref())
}

/// Like [`asked`], from the headers of a call.
#[must_use]
pub fn of(headers: &http::HeaderMap) -> Option<Duration> {
    parse(headers.get(HEADER)?.to_str().ok()?)
}

/// Adds a limit to the headers of a call, unless they have one.
pub(crate) fn ask(headers: &mut http::HeaderMap, limit: Duration) {
    let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).clamp(1, MS_MAX);
    if let Ok(value) = HeaderValue::try_from(format!("{ms}m")) {
        headers.entry(HEADER).or_insert(value);
    }
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_grpc_writes_them() {
        assert_eq!(parse("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("7u"), Some(Duration::from_micros(7)));
        for bad in ["", "S", "5", "5s", "-5S", "123456789S", "5\u{e9}"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_asked_for_is_heard() {
        for limit in [Duration::from_millis(1), Duration::from_millis(1500), Duration::from_millis(MS_MAX)] {
            let mut headers = http::HeaderMap::new();
            ask(&mut headers, limit);
            assert_eq!(asked(&MetadataMap::from_headers(headers)), Some(limit));
        }
        assert_eq!(asked(&MetadataMap::new()), None);
    }
}
