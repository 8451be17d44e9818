//! `coppice-bench ledger`: puts load on a ledger of members, and measures it.
//!
//! It founds a ledger with as many members as its clients need. Each client is one lane of a
//! member, and signs by itself. Every append comes with its receipt. Reads are verified.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use coppice_client::{
    self as client, Client, Error,
    ledgers::{Author, Wanted},
};
use coppice_env::{Rng, SystemRng};
use coppice_types::LedgerId;
use coppice_verify::{
    ledgers::{Envelope, Founding, Grant, LANES, Policy, Roles},
    note::{SignerKey, VerifierKey},
};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use crate::load::{self, Caller, Shape};

/// The longest time that a client waits for one answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Endpoints of the cluster; each client begins with a different one.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// The cluster's public key, by which reads are verified.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// The work of the clients.
    #[arg(long, default_value = "append")]
    pub mode: Mode,
    /// Clients, each with a connection and a lane of its own.
    #[arg(long, default_value_t = 1)]
    pub clients: u16,
    /// Journals under one signature; journals of a lineage.
    #[arg(long, default_value_t = 1)]
    pub batch: u32,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 1024)]
    pub value_bytes: usize,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Appends a second in an open loop; 0 for a closed one.
    #[arg(long, default_value_t = 0.0)]
    pub rate: f64,
    /// Check the receipts of appends, too.
    #[arg(long)]
    pub verify: bool,
    /// Ledgers that are founded beside the one that is measured.
    #[arg(long, default_value_t = 0)]
    pub others: u32,
    /// Lay the ledger over all shards that hold ledgers.
    #[arg(long)]
    pub spread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Append.
    Append,
    /// Read single journals with payload, signature and proof.
    Get,
    /// Read a lineage of `--batch` journals with payloads, signatures and proof.
    Lineage,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Get => "get",
            Self::Lineage => "lineage",
        }
    }
}

pub fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRng.fill(&mut bytes);
    bytes
}

pub fn envelope(clue: &[u8], value_bytes: usize) -> Envelope {
    let mut payload = vec![0; value_bytes];
    SystemRng.fill(&mut payload);
    Envelope { nonce: random(), clues: vec![clue.to_vec()], payload }
}

/// A client for each number, which begins with an endpoint of its own. With `verified` it checks
/// all answers.
pub fn connect(endpoints: &[String], key: &str, at: usize, verified: bool) -> Result<Client> {
    let trust = VerifierKey::parse(key.trim()).context("--key")?;
    let endpoint = endpoints[at % endpoints.len()].clone();
    Ok(Client::new(client::Options {
        attempt_timeout: ATTEMPT_TIMEOUT,
        patience: Duration::ZERO,
        trust: verified.then_some(trust),
        ..client::Options::new(endpoint)
    })?)
}

/// A ledger with its members and their keys.
pub struct Scene {
    pub ledger: LedgerId,
    /// Names of members, with the seeds of their keys.
    members: Vec<(String, [u8; 32])>,
}

fn signer(name: &str, seed: &[u8; 32]) -> Result<SignerKey> {
    SignerKey::from_seed(name, seed).map_err(|_| anyhow::anyhow!("a name that no key has"))
}

/// Founds a ledger with this number of members, all of them writers and readers.
pub async fn found(client: &Client, name: &str, members: usize, (spread, policy): (bool, Policy)) -> Result<Scene> {
    let members: Vec<_> = (0..members.max(1)).map(|at| (format!("member-{at}"), random())).collect();
    let grant = |(at, (name, seed)): (usize, &(String, [u8; 32]))| {
        let roles = Roles::WRITER.and(Roles::READER);
        let roles = if at == 0 { roles.and(Roles::OWNER) } else { roles };
        let key = signer(name, seed)?.verifier().public_key();
        Ok(Grant { name: name.clone(), roles, key, certificate: Vec::new() })
    };
    let founding = Founding {
        name: name.to_owned(),
        spread,
        policy,
        members: members.iter().enumerate().map(grant).collect::<Result<_>>()?,
        authorities: Vec::new(),
        time_authorities: Vec::new(),
    };
    let (founder, seed) = &members[0];
    let done = client
        .found_ledger(&signer(founder, seed)?, founder, &founding, random())
        .await
        .context("founding a ledger")?;
    Ok(Scene { ledger: done.ledger, members })
}

/// A hand for each client, in a lane of its own.
async fn authors(options: &Options, scene: &Scene) -> Result<Vec<Author>> {
    let mut authors = Vec::new();
    for at in 0..usize::from(options.clients) {
        let client = connect(&options.endpoints, &options.key, at, options.verify)?;
        let lane = u8::try_from(at % usize::from(LANES))?;
        authors.push(hand(client, scene, at / usize::from(LANES), lane).await?);
    }
    Ok(authors)
}

/// A member's hand, in one of its lanes.
pub async fn hand(client: Client, scene: &Scene, member: usize, lane: u8) -> Result<Author> {
    let (name, seed) = &scene.members[member];
    let author = client.author(scene.ledger, name, lane, signer(name, seed)?).await?;
    author.context("a member that was granted is not there")
}

/// Runs the load, and prints the measurements as JSON.
///
/// # Errors
/// If the arguments contradict each other, or the cluster keeps no ledgers.
pub async fn run(options: Options) -> Result<()> {
    ensure!(options.batch > 0 && options.clients > 0, "--batch and --clients are at least 1");
    let first = connect(&options.endpoints, &options.key, 0, false)?;
    let name = hex::encode(&random()[..8]);
    let before = Instant::now();
    for at in 0..options.others {
        found(&first, &format!("{name}-{at}"), 1, (false, Policy::default())).await?;
    }
    let founded = before.elapsed();
    let members = usize::from(options.clients).div_ceil(usize::from(LANES));
    let scene = found(&first, &name, members, (options.spread, Policy::default())).await?;
    let callers = match options.mode {
        Mode::Append => appends(&options, &scene).await?,
        Mode::Get | Mode::Lineage => reads(&options, &scene).await?,
    };
    let rate = (options.rate > 0.0).then_some(options.rate);
    let shape = Shape { seconds: options.seconds, warmup: options.warmup, rate };
    let measured = load::run(shape, callers).await?;
    let each = if options.mode == Mode::Get { 1 } else { u64::from(options.batch) };
    let journals = measured.calls * each;
    let mut report = measured.into_json();
    let more = json!({
        "system": "coppice", "mode": options.mode.name(), "batch": options.batch, "value_bytes": options.value_bytes,
        "clients": options.clients, "seconds": options.seconds, "rate": options.rate, "spread": options.spread,
        "others": options.others, "founding_s": founded.as_secs_f64(),
        "journals": journals, "journals_per_second": journals as f64 / options.seconds,
    });
    if let (Value::Object(report), Value::Object(more)) = (&mut report, more) {
        report.extend(more);
    }
    println!("{report}");
    Ok(())
}

async fn appends(options: &Options, scene: &Scene) -> Result<Vec<Caller>> {
    let caller = |author: Author| -> Caller {
        let author = Arc::new(Mutex::new(author));
        let (batch, value_bytes) = (options.batch, options.value_bytes);
        Box::new(move |ticket| {
            let author = Arc::clone(&author);
            Box::pin(async move {
                // Each clue has some hundred journals.
                let clue = format!("clue-{}", ticket / 100);
                let envelopes = (0..batch).map(|_| envelope(clue.as_bytes(), value_bytes)).collect();
                author.lock().await.append(envelopes, Vec::new(), true).await.map(drop)
            })
        })
    };
    Ok(authors(options, scene).await?.into_iter().map(caller).collect())
}

/// Appends what is read, under one clue, and reads it.
async fn reads(options: &Options, scene: &Scene) -> Result<Vec<Caller>> {
    let mut author = authors(options, scene).await?.into_iter().next().context("one client at least")?;
    let count = if options.mode == Mode::Get { 1024 } else { options.batch };
    let mut left = count;
    while left > 0 {
        let envelopes: Vec<Envelope> = (0..left.min(64)).map(|_| envelope(b"read", options.value_bytes)).collect();
        left -= u32::try_from(envelopes.len())?;
        author.append(envelopes, Vec::new(), false).await?;
    }
    let wanted = Wanted { payload: true, request: true, proof: true };
    let (ledger, mode) = (scene.ledger, options.mode);
    let caller = |at: usize| {
        let client = connect(&options.endpoints, &options.key, at, true)?;
        let caller: Caller = Box::new(move |ticket| {
            let client = client.clone();
            Box::pin(async move {
                let read = match mode {
                    Mode::Lineage => client.lineage(ledger, b"read", None, wanted).await?,
                    _ => client.journals(ledger, (1 + ticket % u64::from(count), 1), wanted, None).await?,
                };
                let whole = mode == Mode::Get || read.journals.len() == count as usize;
                if whole { Ok(()) } else { Err(Error::Malformed("fewer journals than were appended")) }
            })
        });
        Ok(caller)
    };
    (0..usize::from(options.clients)).map(caller).collect()
}
