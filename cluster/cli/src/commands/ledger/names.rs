//! How arguments name ledgers and clues.

use coppice_client::{Client, Error, ledgers::ledger_name};
use coppice_proto::v1::{self, ledger_name::Which};
use coppice_types::LedgerId;
use coppice_verify::ledgers::CLUE_BYTES_MAX;

use crate::{bytes, failure::Failure};

/// Reads how a ledger is named: `0x` and its id, or its name.
pub(super) fn name_of(text: &str) -> Result<v1::LedgerName, Failure> {
    if !text.starts_with("0x") {
        return Ok(v1::LedgerName { which: Some(Which::Name(text.to_owned())) });
    }
    let id = LedgerId::from_slice(&bytes::parse(text)?);
    Ok(ledger_name(id.ok_or_else(|| Failure::usage("a ledger's id is 0x and 32 hex digits"))?))
}

/// The id of a ledger. A name is looked up.
pub(in crate::commands) async fn id_of(client: &Client, text: &str) -> Result<LedgerId, Failure> {
    Ok(found(client, text).await?.0)
}

/// The id of a ledger, and the number of its journals at head.
pub(in crate::commands) async fn found(client: &Client, text: &str) -> Result<(LedgerId, u64), Failure> {
    let request = v1::DescribeLedgerRequest { ledger: Some(name_of(text)?), read: None };
    let told = client.describe_ledger(request).await?;
    Ok((LedgerId::from_slice(&told.id).ok_or(Error::Malformed("id of a ledger"))?, told.size))
}

/// Reads a clue.
pub(in crate::commands) fn clue_of(text: &str) -> Result<Vec<u8>, Failure> {
    let clue = bytes::parse(text)?;
    if (1..=CLUE_BYTES_MAX).contains(&clue.len()) {
        return Ok(clue);
    }
    Err(Failure::usage(format!("a clue has 1 to {CLUE_BYTES_MAX} bytes, found {}", clue.len())))
}
