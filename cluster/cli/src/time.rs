//! Times for people: RFC 3339, in the reader's time zone.

use jiff::{Timestamp, tz::TimeZone};

/// Reads a time: RFC 3339 with a zone, or digits for ms since 1970. Returns ms since 1970.
///
/// # Errors
/// Says which forms there are.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let ms = if digits {
        text.parse().ok()
    } else {
        // Headers have whole ms, so a part of one changes no answer.
        text.parse::<Timestamp>().ok().and_then(|at| u64::try_from(at.as_nanosecond().div_euclid(1_000_000)).ok())
    };
    ms.ok_or_else(|| {
        "a time is RFC 3339 with a zone (2026-01-31T12:00:00Z, 2026-01-31T13:00:00.250+01:00), \
         or a number of ms since 1970 (1769860800000)"
            .to_owned()
    })
}

/// A time in ms since 1970. A time beyond the calendar is shown as the number.
#[must_use]
pub fn moment(ms: u64) -> String {
    in_zone(ms, &TimeZone::system())
}

fn in_zone(ms: u64, zone: &TimeZone) -> String {
    let timestamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.map_or_else(
        || format!("{ms} ms since 1970"),
        |timestamp| timestamp.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use jiff::tz::Offset;

    use super::*;

    #[test]
    fn a_moment_is_rfc_3339_wherever_it_is_read() {
        assert_eq!(in_zone(0, &TimeZone::UTC), "1970-01-01T00:00:00.000+00:00");
        let zone = TimeZone::fixed(Offset::from_seconds(19_800).expect("half past five is an offset"));
        assert_eq!(in_zone(1_764_335_467_250, &zone), "2025-11-28T18:41:07.250+05:30");
        assert_eq!(in_zone(1_764_335_467_250, &TimeZone::fixed(Offset::UTC)), "2025-11-28T13:11:07.250+00:00");
    }

    #[test]
    fn a_time_is_read_only_with_its_zone_or_as_ms() {
        for (text, ms) in [
            ("0", 0),
            ("1764335467250", 1_764_335_467_250),
            ("18446744073709551615", u64::MAX),
            ("1970-01-01T00:00:00Z", 0),
            ("2025-11-28T13:11:07.250Z", 1_764_335_467_250),
            ("2025-11-28T18:41:07.2509+05:30", 1_764_335_467_250),
        ] {
            assert_eq!(parse(text), Ok(ms), "{text}");
            assert_eq!(
                parse(&in_zone(ms, &TimeZone::UTC)).ok().filter(|_| ms < 1 << 50),
                Some(ms).filter(|_| ms < 1 << 50)
            );
        }
        for text in [
            "",
            "-1",
            "18446744073709551616",
            "2025-11-28",
            "2025-11-28T13:11:07",
            "1969-12-31T23:59:59Z",
            "yesterday",
            "1e3",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("with a zone") && error.contains("ms since 1970"), "{error}");
        }
    }

    #[test]
    fn a_number_that_is_not_a_moment_is_shown_as_it_is() {
        assert_eq!(moment(u64::MAX), "18446744073709551615 ms since 1970");
    }
}
