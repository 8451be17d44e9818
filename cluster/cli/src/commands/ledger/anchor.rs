//! `ledger anchor`: a file with the hashes of a ledger's list, as its holder has verified them.

use std::path::Path;

use coppice_client::Client;
use coppice_types::LedgerId;
use coppice_verify::ledgers::TrustedAnchor;
use serde_json::json;

use super::names::id_of;
use crate::{args::LedgerAnchor, failure::Failure, files::Prepared, genesis::genesis, input, output::Output, text};

pub async fn anchor(client: &Client, args: &LedgerAnchor, trusts: bool, output: Output) -> Result<(), Failure> {
    if !trusts {
        return Err(Failure::usage("no key to trust: set --trust"));
    }
    let ledger = id_of(client, &args.ledger).await?;
    let old = if args.file.exists() { Some(read(&args.file, ledger)?) } else { None };
    let file = Prepared::new(&args.file)?;
    let old = match old {
        Some(old) => old,
        None => TrustedAnchor::new(genesis(client).await?.cluster, ledger),
    };
    let new = client.advance_anchor(&old).await?;
    let object = json!({ "before": old.size(), "journals": new.size(), "root": new.root().to_string() });
    output.result(&object, || {
        let since = if old.size() == 0 { String::new() } else { format!(", {} before", old.size()) };
        format!("trusted: {}{since}, root {}", text::count(new.size(), "journal"), new.root())
    })?;
    file.write(&new.encode())
}

/// Reads the file of an anchor, which must be of this ledger.
pub(super) fn read(path: &Path, ledger: LedgerId) -> Result<TrustedAnchor, Failure> {
    let anchor = TrustedAnchor::decode(&input::read(path)?)
        .map_err(|error| Failure::usage(format!("{}: no trusted anchor: {error}", text::path(path))))?;
    if anchor.ledger == ledger {
        return Ok(anchor);
    }
    Err(Failure::usage(format!("{}: the anchor is of ledger 0x{}", text::path(path), anchor.ledger)))
}
