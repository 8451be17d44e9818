//! `ledger verify`: whether a journal is in a ledger as its author signed it, and has a payload.

use std::path::Path;

use coppice_client::{
    Client, Error,
    ledgers::{LedgerJournal, Wanted},
};
use coppice_types::LedgerId;
use serde_json::json;

use super::{anchor, names::id_of};
use crate::{
    args::LedgerVerify,
    bytes,
    commands::order,
    failure::{Code, Failure},
    output::Output,
    text,
};

pub async fn verify(client: &Client, args: &LedgerVerify, trusts: bool, output: Output) -> Result<(), Failure> {
    if !args.server && !trusts && args.anchor.is_none() {
        let failure = Failure::usage("no key to trust: set --trust, or --anchor");
        return Err(failure.hint("With --server the coordinator verifies, and its word is believed."));
    }
    let payload = args.data.as_deref().map(bytes::parse).transpose()?;
    let ledger = id_of(client, &args.ledger).await?;
    let failed = if args.server {
        client.journal_verdict(ledger, args.jsn, payload.as_deref()).await?.failed
    } else {
        let journal = match &args.anchor {
            Some(file) => below(client, (ledger, args.jsn), file, payload.is_some()).await?,
            None => proven(client, (ledger, args.jsn), payload.is_some()).await?,
        };
        if let Some(order) = journal.occulted_by {
            return Err(order::occulted(client, (ledger, args.jsn), order).await);
        }
        let has_other = journal.envelope.is_some_and(|envelope| Some(envelope.payload) != payload);
        has_other.then(|| "payload".to_owned())
    };
    let (level, by) = match (args.server, &args.anchor) {
        (true, _) => ("server", "the coordinator"),
        (_, Some(_)) => ("anchor", "the anchor"),
        (_, None) => ("proof", "its proof"),
    };
    let object = json!({
        "valid": failed.is_none(),
        "failed": failed,
        "jsn": args.jsn,
        "payload": payload.is_some(),
        "by": level,
    });
    let what = if payload.is_some() { "has this payload, and is" } else { "is" };
    output.result(&object, || match &failed {
        None => format!("valid: journal {} {what} in the ledger as its author signed it, by {by}", args.jsn),
        Some(step) => format!("not valid: journal {} fails at `{}`, by {by}", args.jsn, text::safe(step)),
    })?;
    if failed.is_none() { Ok(()) } else { Err(Failure::new(Code::NotFound, "").silent()) }
}

/// Reads a journal with a proof, which the client verifies.
async fn proven(client: &Client, (ledger, jsn): (LedgerId, u64), payload: bool) -> Result<LedgerJournal, Failure> {
    let wanted = Wanted { payload, request: true, proof: true };
    only(client.journals(ledger, (jsn, 1), wanted, None).await?.journals)
}

/// Reads a journal below a trusted anchor.
async fn below(
    client: &Client,
    (ledger, jsn): (LedgerId, u64),
    file: &Path,
    payload: bool,
) -> Result<LedgerJournal, Failure> {
    let anchor = anchor::read(file, ledger)?;
    if jsn >= anchor.size() {
        let message = format!("{}: the anchor has {}", text::path(file), text::count(anchor.size(), "journal"));
        return Err(Failure::usage(message).hint("`coppice ledger anchor` moves it forward."));
    }
    only(client.journals_below(&anchor, (jsn, 1), payload).await?)
}

fn only(journals: Vec<LedgerJournal>) -> Result<LedgerJournal, Failure> {
    Ok(journals.into_iter().next().ok_or(Error::Malformed("no journal"))?)
}
