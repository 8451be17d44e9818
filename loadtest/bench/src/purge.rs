//! `coppice-bench purge`: fills a ledger of members, keeps some of its journals, and purges the
//! rest. It prints an event after each step, with the seconds that the step took.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use coppice_client::ledgers::Author;
use coppice_verify::ledgers::{Action, ITEMS_MAX, LANES, Order, Ordered, Policy};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ledger::{Scene, connect, envelope, found, hand, random};

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Endpoints of the cluster.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// The cluster's public key.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// How many journals the ledger gets.
    #[arg(long, default_value_t = 1_000_000)]
    pub journals: u64,
    /// How many of them are kept, spread evenly. They are signed one by one, others by the hundred.
    #[arg(long, default_value_t = 1000)]
    pub kept: u64,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 1024)]
    pub value_bytes: usize,
}

/// Journals under one signature.
const BATCH: u64 = 100;

/// Runs the steps, and prints what each took as JSON.
///
/// # Errors
/// If the cluster keeps no ledgers, or refuses a step.
pub async fn run(options: Options) -> Result<()> {
    ensure!(options.kept > 0 && options.kept <= ITEMS_MAX as u64, "at most {ITEMS_MAX} journals are kept");
    ensure!(options.journals / options.kept > BATCH, "the journals between two that are kept make a batch");
    let client = connect(&options.endpoints, &options.key, 0, false)?;
    let policy = Policy { retain_max: u32::try_from(options.kept)?, ..Policy::default() };
    let scene = found(&client, &hex::encode(&random()[..8]), 1, (false, policy)).await?;
    let began = Instant::now();
    let kept = fill(&options, &scene).await?;
    tell("filled", &began, json!({ "journals": options.journals }));

    let began = Instant::now();
    let mut owner = author(&options, &scene, 0).await?;
    let draft = client.prepare_purge(scene.ledger, None, false).await?;
    let before = draft.order.before;
    let purge = order(&mut owner, Action::Purge(draft.order)).await?;
    order(&mut owner, Action::Retain { purge, journals: kept }).await?;
    tell("ordered", &began, json!({ "before": before }));

    let began = Instant::now();
    let (mut from, mut longest) = (0, 0.0_f64);
    while from < before {
        let (to, one) = (before.min(from + ITEMS_MAX as u64), Instant::now());
        order(&mut owner, Action::Sweep { purge, from, to }).await?;
        longest = longest.max(one.elapsed().as_secs_f64());
        from = to;
    }
    tell("swept", &began, json!({ "longest_s": longest }));
    Ok(())
}

fn tell(event: &str, began: &Instant, more: Value) {
    let mut told = json!({ "event": event, "seconds": began.elapsed().as_secs_f64() });
    if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
        told.extend(more);
    }
    println!("{told}");
}

async fn author(options: &Options, scene: &Scene, lane: u8) -> Result<Author> {
    hand(connect(&options.endpoints, &options.key, usize::from(lane), false)?, scene, 0, lane).await
}

/// Appends by all lanes of the owner at once. Returns the numbers of the journals to be kept.
async fn fill(options: &Options, scene: &Scene) -> Result<Vec<u64>> {
    let between = options.journals / options.kept;
    let singles = AtomicU64::new(0);
    let lanes = (0..LANES).map(|lane| {
        let singles = &singles;
        async move {
            let (mut author, mut kept) = (author(options, scene, lane).await?, Vec::new());
            loop {
                let ticket = singles.fetch_add(1, Ordering::Relaxed);
                if ticket >= options.kept {
                    return Ok::<_, anyhow::Error>(kept);
                }
                let clue = format!("clue-{ticket}");
                let payload = |_| envelope(clue.as_bytes(), options.value_bytes);
                let one = author.append(vec![payload(0)], Vec::new(), false).await?;
                kept.push(one.first_jsn);
                let mut left = between - 1;
                while left > 0 {
                    let count = left.min(BATCH);
                    author.append((0..count).map(payload).collect(), Vec::new(), false).await?;
                    left -= count;
                }
            }
        }
    });
    let mut kept = futures::future::try_join_all(lanes).await?.concat();
    kept.sort_unstable();
    Ok(kept)
}

/// Sends an order that its author signs alone. Returns its number.
async fn order(author: &mut Author, action: Action) -> Result<u64> {
    let ordered = Ordered { order: Order { until: u64::MAX, action }, approvals: Vec::new() };
    Ok(author.order(&ordered, random(), false).await.context("an order")?.first_jsn)
}
