//! Writes batches for a while and prints the rates: `load ENDPOINT CLIENTS RECORDS VALUE_BYTES
//! SECONDS [BATCHES_PER_S]`.
//!
//! Each client waits for its answer (with a receipt) before it sends again. With a rate, batches
//! are due at fixed times, and latency counts from the time at which a batch was due.

#![expect(clippy::disallowed_methods, reason = "it measures how long real servers take")]

use std::{
    env,
    error::Error,
    time::{Duration, Instant},
};

use coppice_client::{Client, Options};
use coppice_proto::v1;

/// The work of each client.
#[derive(Clone, Copy)]
struct Work {
    clients: u64,
    records: u64,
    value_bytes: usize,
    time: Duration,
    /// Time between two batches of one client; zero means as fast as possible.
    interval: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [endpoint, clients, records, value_bytes, seconds, rest @ ..] = args.as_slice() else {
        return Err("load ENDPOINT CLIENTS RECORDS VALUE_BYTES SECONDS [BATCHES_PER_S]".into());
    };
    let clients: u64 = clients.parse()?;
    let interval = match rest.first() {
        Some(rate) => Duration::from_secs_f64(f64::from(u32::try_from(clients)?) / rate.parse::<f64>()?),
        None => Duration::ZERO,
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let work = Work { clients, records: records.parse()?, value_bytes: value_bytes.parse()?, time, interval };
    let started = Instant::now();
    let tasks: Vec<_> =
        (0..clients).map(|number| tokio::spawn(write(endpoint.clone(), number, work, started))).collect();
    let mut latencies = Vec::new();
    let mut failed = 0;
    for task in tasks {
        let (mut done, errors) = task.await??;
        latencies.append(&mut done);
        failed += errors;
    }
    let took = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        latencies.get(index.min(latencies.len().saturating_sub(1))).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    println!(
        "{clients} clients, {records} records of {value_bytes} B: {:.0} records/s, {:.0} batches/s, \
         p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, {failed} failed",
        latencies.len() as f64 * work.records as f64 / took,
        latencies.len() as f64 / took,
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(())
}

type Done = (Vec<Duration>, u64);

async fn write(
    endpoint: String,
    client: u64,
    work: Work,
    started: Instant,
) -> Result<Done, Box<dyn Error + Send + Sync>> {
    let ledger = Client::new(Options::new(endpoint))?;
    let mut number = 0;
    let mut latencies = Vec::new();
    let mut failed = 0;
    let nonce = std::process::id();
    let mut due = started + work.interval.mul_f64(client as f64 / work.clients as f64);
    while started.elapsed() < work.time {
        let operations = (0..work.records).map(|record| operation(nonce, client, number * work.records + record, work));
        let batch = v1::Batch { operations: operations.collect(), ..v1::Batch::default() };
        if work.interval.is_zero() {
            due = Instant::now();
        } else {
            tokio::time::sleep_until(due.into()).await;
        }
        match ledger.commit(batch, true).await {
            Ok(_) => latencies.push(due.elapsed()),
            Err(error) => {
                if failed == 0 {
                    eprintln!("client {client}: {error}");
                }
                failed += 1;
            }
        }
        due += work.interval;
        number += 1;
    }
    Ok((latencies, failed))
}

/// A key of 32 bytes that is spread over the key space, and a value that does not compress.
fn operation(nonce: u32, client: u64, number: u64, work: Work) -> v1::Operation {
    let seed = (u64::from(nonce) << 32 ^ client << 40 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mix = |x: u64| {
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let mut key = mix(seed).to_be_bytes().to_vec();
    key.extend_from_slice(&client.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(&u64::from(nonce).to_be_bytes());
    let words = (0..work.value_bytes as u64).step_by(8).flat_map(|at| mix(seed ^ at << 3).to_le_bytes());
    let value: Vec<u8> = words.take(work.value_bytes).collect();
    v1::Operation { key: key.into(), change: Some(v1::operation::Change::Put(value.into())) }
}
