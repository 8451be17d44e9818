//! `coppice-bench drive`: puts load on a ledger and measures it; `loadtest/drive` does the same in
//! Go for other systems.
//!
//! Every client has a connection of its own, unless
//! `--connections` says how many they share. Every commit comes with its receipt, which the client
//! checks if `--verify` says so, and every read with a proof that the client checks.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use coppice_client::{self as client, Client, Error};
use coppice_proto::v1;
use coppice_verify::note::VerifierKey;
use serde_json::{Value, json};

use crate::load::{self, Caller, Measured, Shape};

/// The longest time that a client waits for one answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Endpoints of the ledger; each client begins with a different one.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// The ledger's public key, by which reads are verified.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// closed, open or read.
    #[arg(long, default_value = "closed")]
    pub mode: Mode,
    /// Clients, each with a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub clients: u64,
    /// Connections, if several clients share one.
    #[arg(long)]
    pub connections: Option<u64>,
    /// Check the receipts of commits, too.
    #[arg(long)]
    pub verify: bool,
    /// Records of a batch, or keys of a read.
    #[arg(long, default_value_t = 1)]
    pub batch: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_bytes: usize,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Batches a second in an open loop.
    #[arg(long, default_value_t = 0.0)]
    pub rate: f64,
    /// The number of the first key that is written.
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// The number of keys to read.
    #[arg(long, default_value_t = 0)]
    pub keys: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Write, each batch after the answer to the last one.
    Closed,
    /// Write at fixed times.
    Open,
    /// Read, each key after the answer to the last one.
    Read,
}

/// Spreads the bits of a number (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The key of a number: 32 evenly distributed bytes.
fn key(number: u64) -> Vec<u8> {
    format!("{:016x}{:016x}", mix(number), mix(!number)).into_bytes()
}

/// The value of a number: bytes that don't compress.
fn value(number: u64, length: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(length + 8);
    let mut word = mix(number);
    while value.len() < length {
        value.extend_from_slice(&word.to_le_bytes());
        word = mix(word);
    }
    value.truncate(length);
    value
}

/// Runs the load, and prints the measurements as JSON.
///
/// # Errors
/// If the arguments contradict each other, or the ledger is not there.
pub async fn run(options: Options) -> Result<()> {
    ensure!(options.mode != Mode::Open || options.rate > 0.0, "an open loop needs --rate");
    ensure!(options.mode != Mode::Read || options.keys > 0, "reads need --keys");
    ensure!(options.batch > 0 && options.clients > 0, "--batch and --clients are at least 1");
    ensure!(options.mode != Mode::Read || options.batch <= options.keys, "a read of more keys than there are");
    let connections = connect(&options).await?;
    let rate = (options.mode == Mode::Open).then_some(options.rate);
    let shape = Shape { seconds: options.seconds, warmup: options.warmup, rate };
    let options = Arc::new(options);
    let clients = connections.iter().cycle().take(usize::try_from(options.clients)?).cloned();
    let caller = |client: Client| -> Caller {
        let options = Arc::clone(&options);
        Box::new(move |ticket| {
            let (client, options) = (client.clone(), Arc::clone(&options));
            Box::pin(async move { options.call(&client, ticket).await })
        })
    };
    let measured = load::run(shape, clients.map(caller).collect()).await?;
    print(&options, measured);
    Ok(())
}

/// Opens the connections, and makes a first call over each.
async fn connect(options: &Options) -> Result<Vec<Client>> {
    let count = options.connections.unwrap_or(options.clients);
    ensure!((1..=options.clients).contains(&count), "--connections are some, and no more than --clients");
    let trust = VerifierKey::parse(options.key.trim()).context("--key")?;
    // Receipts are requested in every mode.
    let trust = (options.mode == Mode::Read || options.verify).then_some(trust);
    let mut connections = Vec::new();
    for endpoint in options.endpoints.iter().cycle().take(usize::try_from(count)?) {
        connections.push(Client::new(client::Options {
            attempt_timeout: ATTEMPT_TIMEOUT,
            patience: Duration::ZERO,
            trust: trust.clone(),
            ..client::Options::new(endpoint.clone())
        })?);
    }
    for client in &connections {
        client.head().await.context("a first call")?;
    }
    Ok(connections)
}

impl Options {
    async fn call(&self, client: &Client, ticket: u64) -> Result<(), Error> {
        if self.mode == Mode::Read {
            return self.read(client, ticket).await;
        }
        let first = self.first + ticket * self.batch;
        let operation = |number| v1::Operation {
            key: key(number).into(),
            change: Some(v1::operation::Change::Put(value(number, self.value_bytes).into())),
        };
        let operations = (first..first + self.batch).map(operation).collect();
        client.commit(v1::Batch { operations, ..v1::Batch::default() }, true).await.map(drop)
    }

    /// Reads one key, or several with one proof for all of them.
    async fn read(&self, client: &Client, ticket: u64) -> Result<(), Error> {
        let (batch, count) = (self.batch, self.keys);
        // Neighbouring numbers have keys that lie far apart.
        let first = mix(ticket) % count;
        let key = |number| Bytes::from(key((first + number) % count));
        let found = if batch == 1 {
            let answer = client.get(v1::GetRequest { key: key(0), read: None }).await?;
            answer.record.is_some_and(|record| record.found)
        } else {
            let keys = (0..batch).map(key).collect();
            let answer = client.batch_get(v1::BatchGetRequest { keys, read: None }).await?;
            answer.records.len() as u64 == batch && answer.records.iter().all(|record| record.found)
        };
        if found { Ok(()) } else { Err(Error::Malformed("a key that was written is not there")) }
    }
}

fn print(options: &Options, measured: Measured) {
    let records = measured.calls * options.batch;
    let mode = match options.mode {
        Mode::Closed => "closed",
        Mode::Open => "open",
        Mode::Read => "read",
    };
    let begun = measured.begun;
    let mut report = measured.into_json();
    let more = json!({
        "system": "coppice", "mode": mode, "batch": options.batch, "value_bytes": options.value_bytes,
        "clients": options.clients, "connections": options.connections.unwrap_or(options.clients),
        "seconds": options.seconds, "rate": options.rate,
        "records": records, "records_per_second": records as f64 / options.seconds,
        "next_key": options.first + begun * options.batch,
    });
    if let (Value::Object(report), Value::Object(more)) = (&mut report, more) {
        report.extend(more);
    }
    println!("{report}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_the_go_drivers() {
        // The test of loadtest/drive has the same key.
        assert_eq!(String::from_utf8(key(0)).expect("hex"), "e220a8397b1dcdafe4d971771b652c20");
        assert_eq!(hex::encode(value(7, 12)), "d70d3259e4e1cb6345ceab7e");
        assert_eq!((key(5).len(), value(5, 256).len()), (32, 256));
    }
}
