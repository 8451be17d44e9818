//! Times for people: RFC 3339, in the reader's time zone.

use jiff::{Timestamp, tz::TimeZone};

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
    fn a_number_that_is_not_a_moment_is_shown_as_it_is() {
        assert_eq!(moment(u64::MAX), "18446744073709551615 ms since 1970");
    }
}
