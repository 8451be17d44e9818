//! Points in time, and how far off they may be, as exact numbers.

use std::fmt;

use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

/// Most digits of a fraction of a second: nanoseconds.
const FRACTION_DIGITS_MAX: usize = 9;
const NANOS_PER_SECOND: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
const NANOS_PER_MICRO: i128 = 1_000;

/// A point in time: nanoseconds since the beginning of 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i128);

impl Moment {
    /// The moment at this number of nanoseconds after the beginning of 1970.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: i128) -> Self {
        Self(nanoseconds)
    }

    /// The moment at this number of milliseconds after the beginning of 1970, the unit of headers.
    #[must_use]
    pub const fn from_milliseconds(milliseconds: u64) -> Self {
        Self(milliseconds as i128 * NANOS_PER_MILLI)
    }

    /// Nanoseconds since the beginning of 1970.
    #[must_use]
    pub const fn nanoseconds(self) -> i128 {
        self.0
    }

    /// Whole seconds since the beginning of 1970, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i128 {
        self.0.div_euclid(NANOS_PER_SECOND)
    }

    /// The moment that is earlier by `accuracy`.
    #[must_use]
    pub const fn minus(self, accuracy: Accuracy) -> Self {
        Self(self.0.saturating_sub(accuracy.nanoseconds()))
    }

    /// The moment that is later by `accuracy`.
    #[must_use]
    pub const fn plus(self, accuracy: Accuracy) -> Self {
        Self(self.0.saturating_add(accuracy.nanoseconds()))
    }

    /// Reads a GeneralizedTime as DER and RFC 3161 have it: `YYYYMMDDhhmmss[.f]Z`, where the
    /// fraction doesn't end in `0`. `None` if it has another form, more than nine digits after the
    /// point, or names a time that no calendar has.
    pub(crate) fn from_generalized_time(text: &[u8]) -> Option<Self> {
        let text = text.strip_suffix(b"Z")?;
        let (whole, fraction) = text.split_at_checked(14)?;
        let nanosecond = match fraction {
            [] => 0,
            [b'.', digits @ ..] => fraction_nanoseconds(digits)?,
            _ => return None,
        };
        let two = |at: usize| digits(&whole[at..at + 2]).and_then(|value| u8::try_from(value).ok());
        let year = i32::try_from(digits(&whole[..4])?).ok()?;
        let date = Date::from_calendar_date(year, Month::try_from(two(4)?).ok()?, two(6)?).ok()?;
        let time = Time::from_hms_nano(two(8)?, two(10)?, two(12)?, nanosecond).ok()?;
        Some(Self(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp_nanos()))
    }
}

impl fmt::Display for Moment {
    /// Writes the moment as RFC 3339 has it, with as many digits after the point as it needs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(at) = OffsetDateTime::from_unix_timestamp_nanos(self.0) else {
            return write!(formatter, "{} ns after 1970", self.0);
        };
        let (year, month, day) = at.to_calendar_date();
        let (hour, minute, second, nanosecond) = at.to_hms_nano();
        write!(formatter, "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", u8::from(month))?;
        let fraction = format!("{nanosecond:09}");
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() { write!(formatter, "Z") } else { write!(formatter, ".{fraction}Z") }
    }
}

fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0u32, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn fraction_nanoseconds(fraction: &[u8]) -> Option<u32> {
    let fits = (1..=FRACTION_DIGITS_MAX).contains(&fraction.len()) && fraction.last() != Some(&b'0');
    let value = if fits { digits(fraction)? } else { return None };
    let missing = u32::try_from(FRACTION_DIGITS_MAX - fraction.len()).ok()?;
    Some(value * 10u32.pow(missing))
}

/// How far a stamped time may be from the true one, in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    seconds: u32,
    millis: u16,
    micros: u16,
}

impl Accuracy {
    /// The sum of seconds, milliseconds and microseconds. `None` if the milliseconds or the
    /// microseconds are a thousand or more.
    #[must_use]
    pub const fn new(seconds: u32, millis: u16, micros: u16) -> Option<Self> {
        if millis < 1000 && micros < 1000 { Some(Self { seconds, millis, micros }) } else { None }
    }

    /// An accuracy in milliseconds, which may be more than a thousand.
    #[must_use]
    pub const fn from_millis(millis: u32) -> Self {
        // The remainder is below a thousand.
        Self { seconds: millis / 1000, millis: (millis % 1000) as u16, micros: 0 }
    }

    /// The sum in nanoseconds.
    #[must_use]
    pub const fn nanoseconds(self) -> i128 {
        self.seconds as i128 * NANOS_PER_SECOND
            + self.millis as i128 * NANOS_PER_MILLI
            + self.micros as i128 * NANOS_PER_MICRO
    }

    /// The coarser of two accuracies.
    #[must_use]
    pub const fn or_coarser(self, other: Self) -> Self {
        if self.nanoseconds() < other.nanoseconds() { other } else { self }
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:03}{:03}", self.millis, self.micros);
        let fraction = fraction.trim_end_matches('0');
        write!(formatter, "{}", self.seconds)?;
        if fraction.is_empty() { write!(formatter, " s") } else { write!(formatter, ".{fraction} s") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        for (text, nanoseconds, shown) in [
            ("19700101000000Z", 0, "1970-01-01T00:00:00Z"),
            ("20261121043156.547Z", 1_795_235_516_547_000_000, "2026-11-21T04:31:56.547Z"),
            ("20000229235959.000000001Z", 951_868_799_000_000_001, "2000-02-29T23:59:59.000000001Z"),
            ("19691231235959.5Z", -500_000_000, "1969-12-31T23:59:59.5Z"),
            ("99991231235959.999999999Z", 253_402_300_799_999_999_999, "9999-12-31T23:59:59.999999999Z"),
        ] {
            let moment = Moment::from_generalized_time(text.as_bytes()).expect(text);
            assert_eq!((moment.nanoseconds(), moment.to_string().as_str()), (nanoseconds, shown));
        }
        assert_eq!(Moment::from_nanoseconds(-1).seconds(), -1);
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "Z",
            "2026112104315Z",
            "20261121043156",
            "20261121043156+0000",
            "20261121043156.Z",
            "20261121043156.50Z",
            "20261121043156.0Z",
            "20261121043156,5Z",
            "20261121043156.1234567891Z",
            "20261121043156.-1Z",
            "20261321043156Z",
            "20260229043156Z",
            "20261121243156Z",
            "20261121043160Z",
            "202611210431 6Z",
            "2026112104315\u{663}Z",
            "20261121043156.5ZZ",
        ] {
            assert_eq!(Moment::from_generalized_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn accuracies_add_up() {
        let accuracy = Accuracy::new(1, 500, 20).expect("small parts");
        assert_eq!(accuracy.nanoseconds(), 1_500_020_000);
        assert_eq!(accuracy.to_string(), "1.50002 s");
        assert_eq!(Accuracy::from_millis(61_250).to_string(), "61.25 s");
        assert_eq!(Accuracy::new(0, 1000, 0), None);
        assert_eq!(Accuracy::new(0, 0, 1000), None);
        let second = Accuracy::new(1, 0, 0).expect("no parts");
        assert_eq!((accuracy.or_coarser(second), second.or_coarser(accuracy)), (accuracy, accuracy));
        let moment = Moment::from_milliseconds(5_000);
        assert_eq!(moment.minus(second), Moment::from_milliseconds(4_000));
        assert_eq!(moment.plus(second), Moment::from_milliseconds(6_000));
    }
}
