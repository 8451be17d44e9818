//! `coppice audit`: checks that every state root follows from its batches.

use std::fmt;

use coppice_client::{
    Client,
    audit::{Audit, Difference, Report},
};
use coppice_types::Version;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Value, json};

use super::verify::parse_vkey;
use crate::{
    args,
    failure::{Code, Failure},
    output::Output,
    text::{count, safe},
};

pub async fn audit(client: &Client, args: &args::Audit, trust: Option<&str>, output: Output) -> Result<(), Failure> {
    let missing = || Failure::usage("no key to trust: set --key or --trust");
    let key = parse_vkey(args.key.as_deref().or(trust).ok_or_else(missing)?)?;
    if args.to.is_some_and(|to| args.from.unwrap_or(0) > to) {
        return Err(Failure::usage("there are no versions to audit: --from is above --to"));
    }
    let audit = Audit { key, from: Version(args.from.unwrap_or(0)), to: args.to.map(Version) };
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} versions, {rate}, {eta} left") {
        let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
            // A progress bar that can't be written is ignored.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
    }
    let report = client.audit(&audit, |progress| {
        bar.set_length(progress.to.0);
        bar.set_position(progress.version.0);
    });
    let report = report.await;
    bar.finish_and_clear();
    let report = report?;
    output.result(&to_json(&report, audit.from), || to_text(&report, audit.from))?;
    match report.difference {
        None => Ok(()),
        Some(_) => Err(Failure::new(Code::NotFound, "").silent()),
    }
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
        "checkpoint": {
            "origin": report.checkpoint.origin,
            "size": report.checkpoint.size,
            "root": report.checkpoint.root.to_string(),
        },
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
