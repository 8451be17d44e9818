//! `coppice audit`: checks that every state root follows from its batches.

use std::fmt;

use coppice_client::{
    Client,
    audit::{Audit, Difference, LedgerAudit, LedgerDifference, LedgerReport, Progress, Report},
};
use coppice_types::Version;
use coppice_verify::{checkpoint::Checkpoint, note::VerifierKey};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Value, json};

use super::{ledger::names::id_of, verify::parse_vkey};
use crate::{
    args,
    failure::{Code, Failure},
    output::Output,
    text::{count, safe},
};

pub async fn audit(client: &Client, args: &args::Audit, trust: Option<&str>, output: Output) -> Result<(), Failure> {
    let key = key(args.key.as_deref(), trust)?;
    if args.to.is_some_and(|to| args.from.unwrap_or(0) > to) {
        return Err(Failure::usage("there are no versions to audit: --from is above --to"));
    }
    let audit = Audit { key, from: Version(args.from.unwrap_or(0)), to: args.to.map(Version) };
    let bar = bar(output);
    let report = client.audit(&audit, |progress| show(&bar, progress)).await;
    bar.finish_and_clear();
    let report = report?;
    output.result(&to_json(&report, audit.from), || to_text(&report, audit.from))?;
    verdict(report.difference.is_none())
}

/// The public key that the caller trusts.
fn key(given: Option<&str>, trust: Option<&str>) -> Result<VerifierKey, Failure> {
    let missing = || Failure::usage("no key to trust: set --key or --trust");
    parse_vkey(given.or(trust).ok_or_else(missing)?)
}

/// The exit code of an audit, whose report says all.
fn verdict(sound: bool) -> Result<(), Failure> {
    if sound { Ok(()) } else { Err(Failure::new(Code::NotFound, "").silent()) }
}

/// A bar of the versions that are taken.
fn bar(output: Output) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} versions, {rate}, {eta} left") {
        let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
            // A progress bar that can't be written is ignored.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.to.0);
    bar.set_position(progress.version.0);
}

/// Checks that everything in a ledger of members is what they signed.
pub async fn ledger(
    client: &Client,
    args: &args::LedgerAudit,
    trust: Option<&str>,
    output: Output,
) -> Result<(), Failure> {
    let key = key(args.key.as_deref(), trust)?;
    let ledger = id_of(client, &args.ledger).await?;
    let bar = bar(output);
    let audit = LedgerAudit { key, ledger, values: args.values };
    let report = client.audit_ledger(&audit, |progress| show(&bar, progress)).await;
    bar.finish_and_clear();
    let report = report?;
    output.result(&ledger_json(&report, &audit), || ledger_text(&report, &audit))?;
    verdict(report.difference.is_none())
}

fn ledger_json(report: &LedgerReport, audit: &LedgerAudit) -> Value {
    let difference = |it: &LedgerDifference| {
        json!({
            "epoch": it.stamp.epoch.0,
            "version": it.stamp.version.0,
            "jsn": it.jsn,
            "what": it.what,
        })
    };
    json!({
        "sound": report.difference.is_none(),
        "ledger_id": audit.ledger.to_string(),
        "since": report.since.map(|version| version.0),
        "to": report.to.0,
        "purged": report.purged,
        "journals": report.journals,
        "root": report.root.to_string(),
        "occulted": report.occulted,
        "payloads": audit.values.then_some(report.payloads),
        "checkpoint": checkpoint(&report.checkpoint),
        "first_difference": report.difference.as_ref().map(difference),
    })
}

fn ledger_text(report: &LedgerReport, audit: &LedgerAudit) -> String {
    let LedgerReport { checkpoint, journals, root, occulted, payloads, difference, .. } = report;
    let under = format!("under the checkpoint of {} at {}", safe(&checkpoint.origin), count(checkpoint.size, "entry"));
    let read = if audit.values { format!(", {} read", count(*payloads, "payload")) } else { String::new() };
    let right = format!("{}, {occulted} of them occulted{read}", count(*journals, "journal"));
    let purged = match report.since {
        None => String::new(),
        Some(version) => format!(
            "\n  those below {} were purged, by an order that all of their members signed; requests were judged again \
             behind version {version}, and journals before it are proven",
            report.purged
        ),
    };
    match difference {
        None => format!("sound: {right}, are what their authors signed{purged}\n  root {root}, {under}"),
        Some(LedgerDifference { stamp, jsn, what }) => {
            let jsn = jsn.map_or_else(String::new, |jsn| format!(", journal {jsn}"));
            format!("NOT SOUND at version {stamp}{jsn}: {}\n  {right}, before it are right, {under}", safe(what))
        }
    }
}

fn checkpoint(checkpoint: &Checkpoint) -> Value {
    json!({
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.to_string(),
    })
}

fn to_json(report: &Report, from: Version) -> Value {
    let difference = |it: &Difference| {
        json!({
            "epoch": it.stamp.epoch.0,
            "version": it.stamp.version.0,
            "shard": it.shard.map(|shard| shard.0),
            "what": it.what,
        })
    };
    json!({
        "sound": report.difference.is_none(),
        "from": from.0,
        "trusted": (from.0 > 1).then(|| from.0 - 1),
        "to": report.to.0,
        "compared": report.compared,
        "records": report.records,
        "checkpoint": checkpoint(&report.checkpoint),
        "first_difference": report.difference.as_ref().map(difference),
    })
}

fn to_text(report: &Report, from: Version) -> String {
    let Report { checkpoint, to, compared, records, difference } = report;
    let under = format!("under the checkpoint of {} at {}", safe(&checkpoint.origin), count(checkpoint.size, "entry"));
    let (roots, records) = (count(*compared, "state root"), count(*records, "record"));
    match difference {
        None if from.0 > 1 => format!(
            "sound: {roots}, from version {from} to {to}, follow from the batches and from the state of version {}\n  \
             {records} in the end, {under}",
            from.0 - 1
        ),
        None => {
            format!("sound: all {roots} up to version {to} follow from the batches\n  {records} in the end, {under}")
        }
        Some(Difference { stamp, shard, what }) => {
            let shard = shard.map_or_else(String::new, |shard| format!(", shard {shard}"));
            format!("NOT SOUND at version {stamp}{shard}: {}\n  {roots} before it are right, {under}", safe(what))
        }
    }
}
