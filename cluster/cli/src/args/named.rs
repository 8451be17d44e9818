//! Names of versions on the command line.

use std::str::FromStr;

use coppice_types::Stamp;

/// A version as the command line names it: `17`, or with its epoch `0.17`, as commands print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The epoch; `None` means the one in which the version stands.
    pub epoch: Option<u64>,
    pub version: u64,
}

impl FromStr for Named {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(Stamp { epoch, version }) = text.parse() {
            return Ok(Self { epoch: Some(epoch.0), version: version.0 });
        }
        let version = text.parse().map_err(|_| "neither VERSION nor EPOCH.VERSION, as in 17 or 0.17")?;
        Ok(Self { epoch: None, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named_with_or_without_its_epoch() {
        assert_eq!("17".parse(), Ok(Named { epoch: None, version: 17 }));
        assert_eq!("2.17".parse(), Ok(Named { epoch: Some(2), version: 17 }));
        for wrong in ["", ".", "1.", ".1", "+1.2", "1.2.3", "-1", "18446744073709551616"] {
            assert!(wrong.parse::<Named>().is_err(), "{wrong}");
        }
    }
}
