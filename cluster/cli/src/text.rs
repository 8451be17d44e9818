//! Text for people: escaped, shortened, counted.

use std::{os::unix::ffi::OsStrExt, path::Path};

use coppice_types::escape::escape;

/// Foreign text for one line of a message.
#[must_use]
pub fn safe(text: &str) -> String {
    escape(text.as_bytes()).to_string()
}

/// A file's name for a message.
#[must_use]
pub fn path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes()).to_string()
}

/// At most `chars` characters of text that is escaped already.
#[must_use]
pub fn shorten(text: &str, chars: usize) -> String {
    let mut line: String = text.chars().take(chars).collect();
    if text.chars().nth(chars).is_some() {
        line.push('…');
    }
    line
}

/// A number of things: `1 record`, `2 records`.
#[must_use]
pub fn count(number: u64, thing: &str) -> String {
    let plural = match thing.strip_suffix('y') {
        _ if number == 1 => thing.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{thing}s"),
    };
    format!("{number} {plural}")
}

/// A number of bytes for people: three digits, in units of 1024.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return count(bytes, "byte");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would round to 1024 is shown in the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 99.95) + usize::from(value < 9.995);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_forms() {
        assert_eq!([0, 1, 2].map(|number| count(number, "record")), ["0 records", "1 record", "2 records"]);
        assert_eq!([1, 2].map(|number| count(number, "entry")), ["1 entry", "2 entries"]);
        assert_eq!([1, 2].map(|number| count(number, "key")), ["1 key", "2 keys"]);
        let sizes = [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (10 * 1024, "10.0 KiB")];
        for (bytes, shown) in sizes {
            assert_eq!(size(bytes), shown);
        }
        assert_eq!(size(100 * 1024), "100 KiB");
        assert_eq!(size(1024 * 1024 - 1), "1.00 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }
}
