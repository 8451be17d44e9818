//! Names of tiles and entry bundles (C2SP `tlog-tiles`; `docs/verification.md` section 10).
//!
//! Each resource has one spelling: a path other than the one that [`TileName`] prints names
//! nothing.

use alloc::{
    format,
    string::{String, ToString},
};
use core::fmt;

/// Hashes of a full tile, and entries of a full bundle.
pub const WIDTH: u16 = 256;
/// The highest level that a path can name.
pub const LEVEL_MAX: u8 = 63;
/// Longest path of a tile in bytes: 2^64 has seven groups of three digits.
const PATH_BYTES_MAX: usize = 64;

/// The content of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Hashes of 32 bytes: the roots of neighbouring subtrees of 256^level entries.
    Hashes {
        /// Level of the tile, at most [`LEVEL_MAX`].
        level: u8,
    },
    /// The entries themselves, each behind its length as a big-endian `u16`.
    Entries,
}

/// The name of a tile or of an entry bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TileName {
    /// The content that the name stands for.
    pub content: Content,
    /// Number of the tile among those of its level, from 0 on.
    pub number: u64,
    /// Number of hashes or entries, 1 to [`WIDTH`]. Only the newest tile of a level has fewer than
    /// [`WIDTH`].
    pub width: u16,
}

impl TileName {
    /// Parses a path without a leading slash; `None` if it names no tile or bundle.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        if path.len() > PATH_BYTES_MAX {
            return None;
        }
        let (content, rest) = path.strip_prefix("tile/")?.split_once('/')?;
        let content = match content {
            "entries" => Content::Entries,
            level => Content::Hashes { level: level.parse().ok().filter(|level| *level <= LEVEL_MAX)? },
        };
        let (number, width) = match rest.split_once(".p/") {
            Some((number, width)) => (number, width.parse().ok().filter(|width| (1..WIDTH).contains(width))?),
            None => (rest, WIDTH),
        };
        let mut value: u64 = 0;
        for group in number.split('/') {
            let digits: u64 = group.trim_start_matches('x').parse().ok()?;
            value = value.checked_mul(1000)?.checked_add(digits)?;
        }
        let name = Self { content, number: value, width };
        // Comparing with the one spelling refuses signs, zeros and groups that do not belong.
        (name.to_string() == path).then_some(name)
    }

    /// Whether a log of `size` entries has this tile.
    #[must_use]
    pub fn is_in(&self, size: u64) -> bool {
        let level = match self.content {
            Content::Hashes { level } => u32::from(level),
            Content::Entries => 0,
        };
        let hashes = size.checked_shr(8 * level).unwrap_or(0);
        let end = self.number.checked_mul(u64::from(WIDTH)).and_then(|start| start.checked_add(u64::from(self.width)));
        end.is_some_and(|end| end <= hashes)
    }
}

/// Prints the path without a leading slash.
impl fmt::Display for TileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.content {
            Content::Hashes { level } => write!(f, "tile/{level}/{}", number_path(self.number))?,
            Content::Entries => write!(f, "tile/entries/{}", number_path(self.number))?,
        }
        if self.width < WIDTH { write!(f, ".p/{}", self.width) } else { Ok(()) }
    }
}

/// The path of a tile's number in groups of three digits: `x001/x234/067` for 1234067.
#[must_use]
pub fn number_path(number: u64) -> String {
    let mut path = format!("{:03}", number % 1000);
    let mut rest = number / 1000;
    while rest > 0 {
        path = format!("x{:03}/{path}", rest % 1000);
        rest /= 1000;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(level: u8, number: u64, width: u16) -> TileName {
        TileName { content: Content::Hashes { level }, number, width }
    }

    #[test]
    fn names_survive_their_spelling() {
        for (name, path) in [
            (hashes(0, 0, 256), "tile/0/000"),
            (hashes(0, 999, 1), "tile/0/999.p/1"),
            (hashes(63, 1_234_067, 255), "tile/63/x001/x234/067.p/255"),
            (TileName { content: Content::Entries, number: 1000, width: 256 }, "tile/entries/x001/000"),
            (hashes(0, u64::MAX, 256), "tile/0/x018/x446/x744/x073/x709/x551/615"),
        ] {
            assert_eq!(name.to_string(), path);
            assert_eq!(TileName::parse(path), Some(name));
        }
    }

    #[test]
    fn other_spellings_name_nothing() {
        for path in [
            "",
            "tile",
            "tile/0",
            "tile/0/",
            "/tile/0/000",
            "tile/00/000",
            "tile/64/000",
            "tile/-1/000",
            "tile/+1/000",
            "tile/0/0",
            "tile/0/00",
            "tile/0/0000",
            "tile/0/x000/001",
            "tile/0/001/000",
            "tile/0/xx01/000",
            "tile/0/x001/x000",
            "tile/0/000.p/0",
            "tile/0/000.p/256",
            "tile/0/000.p/01",
            "tile/0/000.p/+1",
            "tile/0/000.p/",
            "tile/0/000.p/1.p/1",
            "tile/0/000/",
            "tile/entries/000.p/256",
            "tile/Entries/000",
            "tile/8/0/000",
            "tile/0/x018/x446/x744/x073/x709/x551/616",
            "tile/0/x999/x999/x999/x999/x999/x999/x999/x999/x999/x999/x999/999",
        ] {
            assert_eq!(TileName::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_log_has_the_tiles_that_its_size_fills() {
        let entries = |number, width| TileName { content: Content::Entries, number, width };
        for (name, smallest) in [
            (hashes(0, 0, 1), 1),
            (hashes(0, 0, 256), 256),
            (hashes(0, 2, 88), 600),
            (hashes(1, 0, 2), 512),
            (hashes(2, 0, 1), 65_536),
            (entries(2, 88), 600),
        ] {
            assert!(name.is_in(smallest) && !name.is_in(smallest - 1), "{name}");
        }
        assert!(!hashes(8, 0, 1).is_in(u64::MAX) && !hashes(63, u64::MAX, 256).is_in(u64::MAX));
    }
}
