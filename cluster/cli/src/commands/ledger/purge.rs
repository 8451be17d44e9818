//! Purges of a ledger: `ledger purge`.

use coppice_client::{
    Client,
    ledgers::{Affected, Appended, Author, PurgeDraft},
};
use coppice_types::{LedgerId, Version};
use coppice_verify::ledgers::{APPROVALS_MAX, Action, DATA, ITEMS_MAX, Leaf, Order, Ordered, Purge, PurgeState, Roles};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{
    author,
    names::{found, id_of},
    nonce,
};
use crate::{
    args::{LedgerPurge, PurgePrepare, Signer},
    commands::order::{Draft, brief},
    failure::{Code, Failure},
    files::Prepared,
    input,
    output::{Output, tell_line},
    text::{count, safe},
};

/// Journals that a ledger may have more when an order is submitted.
const WITHIN: u64 = 100_000;

pub async fn run(client: &Client, command: &LedgerPurge, output: Output) -> Result<(), Failure> {
    match command {
        LedgerPurge::Prepare(args) => prepare(client, args, output).await,
        LedgerPurge::Retain { ledger, jsn, signer } => retain(client, (ledger, jsn), signer, output).await,
        LedgerPurge::Recall { ledger, signer } => {
            let (ledger, purge) = newest(client, ledger).await?;
            send(client, ledger, Action::Recall { purge: purge.order }, signer, output).await
        }
        LedgerPurge::Sweep { ledger, signer } => sweep(client, ledger, signer, output).await,
        LedgerPurge::Status { ledger } => status(client, ledger, output).await,
    }
}

/// The newest purge of a ledger.
async fn newest(client: &Client, name: &str) -> Result<(LedgerId, Purge), Failure> {
    let ledger = id_of(client, name).await?;
    let purge = client.newest_purge(ledger).await?;
    let none = || Failure::new(Code::NotFound, "the ledger was never ordered to be purged");
    let purge = purge.ok_or_else(|| none().hint("`coppice ledger purge prepare` writes the order."))?;
    Ok((ledger, purge))
}

async fn prepare(client: &Client, args: &PurgePrepare, output: Output) -> Result<(), Failure> {
    let file = Prepared::new(&args.out)?;
    let (ledger, size) = found(client, &args.ledger).await?;
    if let Some(before) = args.before.filter(|before| *before > size) {
        return Err(Failure::usage(format!(
            "the ledger has {}: it has no journal {}",
            count(size, "journal"),
            before - 1
        )));
    }
    let PurgeDraft { order, affected, founding } = client.prepare_purge(ledger, args.before, args.close).await?;
    if affected.len() > APPROVALS_MAX {
        let message = format!("{} have journals there, and at most {APPROVALS_MAX} can sign", affected.len());
        return Err(Failure::new(Code::Refused, message).hint("Purge fewer journals at a time."));
    }
    let within = if args.close { 0 } else { args.within.unwrap_or(WITHIN) };
    let draft = Draft {
        name: args.ledger.clone(),
        cluster: client.cluster_of_orders().await?,
        ledger,
        order: Order { until: order.size.saturating_add(within), action: Action::Purge(order) },
        approvals: Vec::new(),
    };
    file.write(&draft.to_bytes())?;
    let signs = |it: &&Affected| it.revocation.is_none();
    let owner = affected.iter().filter(signs).any(|it| it.member.roles.has(Roles::OWNER));
    let mut signers: Vec<String> = affected.iter().filter(signs).map(|it| safe(&it.member.name)).collect();
    signers.extend((!owner).then(|| "an owner".to_owned()));
    signers.extend(affected.iter().any(|it| it.revocation.is_some()).then(|| "a regulator".to_owned()));
    let absent: Vec<String> = affected.iter().filter(|it| !signs(it)).map(|it| safe(&it.member.name)).collect();
    if !absent.is_empty() && founding.policy.absent_days == 0 {
        let names = absent.join(", ");
        tell_line(&format!("note: {names} can't sign without a key, and the ledger's rules let nobody sign for them"));
    }
    if input::is_standard(&args.out) {
        tell_line(&format!("note: this must be signed by {}", signers.join(", ")));
        return Ok(());
    }
    let mut object = draft.object();
    object["to_sign"] = json!(signers);
    object["absent"] = json!(absent);
    output.result(&object, || format!("{}\n  must be signed by {}", draft.text(), signers.join(", ")))
}

/// Sends an order that its author signs alone.
async fn send(
    client: &Client,
    ledger: LedgerId,
    action: Action,
    signer: &Signer,
    output: Output,
) -> Result<(), Failure> {
    let mut author = author(client, ledger, signer).await?;
    let order = Order { until: u64::MAX, action };
    let done = order_alone(&mut author, &order).await?;
    let object = json!({ "jsn": done.first_jsn, "epoch": done.stamp.epoch.0, "version": done.stamp.version.0 });
    output.result(&object, || format!("journal {} {}, version {}", done.first_jsn, brief(&order), done.stamp))
}

async fn order_alone(author: &mut Author, order: &Order) -> Result<Appended, Failure> {
    let ordered = Ordered { order: order.clone(), approvals: Vec::new() };
    author.order(&ordered, nonce(), false).await.map_err(Failure::of_write)
}

async fn retain(client: &Client, (name, jsns): (&str, &[u64]), signer: &Signer, output: Output) -> Result<(), Failure> {
    let (ledger, purge) = newest(client, name).await?;
    let mut journals = Vec::new();
    for jsn in jsns {
        let told = client.journals(ledger, (*jsn, 1), Default::default(), None).await?;
        let leaf: Option<&Leaf> = told.journals.first().map(|journal| &journal.leaf);
        let leaf = leaf.filter(|leaf| leaf.kind == DATA);
        let only_data = || Failure::usage(format!("journal {jsn} holds no data: no purge takes it"));
        let leaf = leaf.ok_or_else(only_data)?;
        let first = leaf.jsn - u64::from(leaf.index);
        journals.extend(first..first + u64::from(leaf.of));
    }
    journals.sort_unstable();
    journals.dedup();
    if journals.len() > ITEMS_MAX {
        let message = format!(
            "the requests have {}, an order keeps {ITEMS_MAX} at most",
            count(journals.len() as u64, "journal")
        );
        return Err(Failure::usage(message).hint("Name fewer journals at a time."));
    }
    send(client, ledger, Action::Retain { purge: purge.order, journals }, signer, output).await
}

/// A bar of the journals that are swept.
fn bar(output: Output, end: u64) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(end) };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} journals, {eta} left") {
        bar.set_style(style);
    }
    bar
}

async fn sweep(client: &Client, name: &str, signer: &Signer, output: Output) -> Result<(), Failure> {
    let (ledger, purge) = newest(client, name).await?;
    if !purge.is_open() {
        let message = format!("the purge in journal {} is {}", purge.order, state(&purge));
        return Err(Failure::new(Code::Refused, message).hint("Nothing was written."));
    }
    let mut author = author(client, ledger, signer).await?;
    let bar = bar(output, purge.before);
    let begin = purged(client, ledger).await?;
    let mut from = begin;
    while from < purge.before {
        let to = purge.before.min(from + ITEMS_MAX as u64);
        let action = Action::Sweep { purge: purge.order, from, to };
        let done = order_alone(&mut author, &Order { until: u64::MAX, action }).await;
        if let Err(failure) = done {
            bar.finish_and_clear();
            let so_far = format!("journals {begin} to below {from} are swept");
            return Err(if from > begin { failure.during(&so_far) } else { failure });
        }
        from = to;
        bar.set_position(from);
    }
    bar.finish_and_clear();
    let object = json!({ "purge": purge.order, "from": begin, "before": purge.before });
    output.result(&object, || {
        format!(
            "journals {begin} to {} are purged, but for those that are kept\n  their bytes leave the disks when the \
             cluster is pruned: `coppice prune`",
            purge.before - 1
        )
    })
}

/// The number below which journals are purged.
pub(super) async fn purged(client: &Client, ledger: LedgerId) -> Result<u64, Failure> {
    let request = coppice_proto::v1::DescribeLedgerRequest {
        ledger: Some(coppice_client::ledgers::ledger_name(ledger)),
        read: None,
    };
    Ok(client.describe_ledger(request).await?.purged)
}

fn state(purge: &Purge) -> &'static str {
    match purge.state {
        PurgeState::Pending => "pending",
        PurgeState::Sweeping => "sweeping",
        PurgeState::Swept => "swept",
        PurgeState::Recalled => "recalled",
    }
}

async fn status(client: &Client, name: &str, output: Output) -> Result<(), Failure> {
    let (ledger, purge) = newest(client, name).await?;
    let purged = purged(client, ledger).await?;
    let oldest = Version(client.head().await?.pruned_boundary);
    let is_pruned = purge.state == PurgeState::Swept && oldest >= purge.swept;
    let state = if is_pruned { "pruned" } else { state(&purge) };
    let object: Value = json!({
        "state": state,
        "order": purge.order,
        "before": purge.before,
        "closes": purge.closes,
        "purged": purged,
        "swept_version": (purge.swept.0 > 0).then_some(purge.swept.0),
    });
    output.result(&object, || {
        let next = match state {
            "pending" => "`coppice ledger purge sweep` deletes them once the time of notice is over".to_owned(),
            "sweeping" => format!("journals below {purged} are deleted; `coppice ledger purge sweep` goes on"),
            "swept" => format!("versions before {} still have them: `coppice prune` drops these", purge.swept),
            "pruned" => "no version that can be read has them; space on disks is given back as segments die".to_owned(),
            _ => "nothing was deleted".to_owned(),
        };
        format!(
            "the purge of journals below {}, ordered by journal {}, is {state}\n  {next}",
            purge.before, purge.order
        )
    })
}
