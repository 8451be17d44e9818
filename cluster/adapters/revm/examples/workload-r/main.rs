//! Workload R: generated blocks of EVM transactions, through revm on a ledger and on RocksDB.
//!
//! Prints one JSON object for each mode and delay, with the time of each block in milliseconds. A
//! block counts from its first read until it is durable. On a ledger, that includes the root of the
//! state, and each read is proven. RocksDB holds a flat state without any root, and syncs each
//! block.

mod blocks;
mod relay;
mod rocks;

use std::{error::Error, fs, path::PathBuf, time::Duration};

use blocks::{Blocks, Shape};
use clap::{Parser, ValueEnum};
use coppice_client::Options as Client;
use coppice_env::{Clock, SystemClock};
use coppice_revm::{Chain, EMPTY_ROOT, Options, accesses_of};
use coppice_verify::note::VerifierKey;
use relay::Relay;
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv, TxEnv},
    database_interface::{Database, DatabaseCommit},
    primitives::U256,
};
use rocks::Rocks;
use serde_json::json;

/// Accounts and slots of one batch while the state is loaded.
const LOADED_AT_ONCE: usize = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Reads ahead of each block by the access lists of its transactions.
    Prefetch,
    /// The cache alone.
    Cache,
    /// Each read is a call.
    None,
}

#[derive(Debug, Parser)]
struct Arguments {
    /// Endpoint of the ledger; RocksDB if there is none
    #[arg(long, requires = "key")]
    endpoint: Option<String>,
    /// File with the key of the ledger
    #[arg(long)]
    key: Option<PathBuf>,
    /// Directory for RocksDB [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Accounts in the state
    #[arg(long, default_value_t = 1_000_000)]
    accounts: u64,
    /// Slots in the state
    #[arg(long, default_value_t = 4_000_000)]
    slots: u64,
    /// Blocks that are measured
    #[arg(long, default_value_t = 50)]
    blocks: u64,
    /// Blocks before these, which fill caches
    #[arg(long, default_value_t = 20)]
    warmup: u64,
    /// How a ledger is read
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Mode::Prefetch, Mode::Cache, Mode::None])]
    modes: Vec<Mode>,
    /// Delays of a round trip to the ledger, in ms
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.5, 1.0])]
    delays: Vec<f64>,
    /// Memory for cached state, in MiB
    #[arg(long, default_value_t = 256)]
    cache: usize,
    /// A tenth of the state, and few blocks
    #[arg(long)]
    quick: bool,
}

/// What was measured.
#[derive(Debug, Default)]
struct Measured {
    block_ms: Vec<f64>,
    reads: u64,
    writes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.accounts, arguments.slots) = (arguments.accounts / 10, arguments.slots / 10);
        (arguments.blocks, arguments.warmup) = (arguments.blocks.min(10), arguments.warmup.min(5));
    }
    let shape = Shape { accounts: arguments.accounts, slots: arguments.slots };
    match (&arguments.endpoint, &arguments.key) {
        (Some(endpoint), Some(key)) => on_ledger(&arguments, shape, endpoint, key),
        _ => on_rocks(&arguments, shape),
    }
}

/// Runs the transactions of a block.
fn execute<D: Database + DatabaseCommit>(database: D, number: u64, transactions: Vec<TxEnv>) -> Result<(), String> {
    let environment = BlockEnv { number: U256::from(number), ..BlockEnv::default() };
    let mut config = CfgEnv::default();
    // Senders recur, so their nonces would have to be generated from what ran before.
    config.disable_nonce_check = true;
    let context = Context::mainnet().with_cfg(config).with_block(environment).with_db(database);
    let mut evm = context.build_mainnet();
    for transaction in transactions {
        let result = evm.transact_commit(transaction).map_err(|error| error.to_string())?;
        if !result.is_success() {
            return Err(format!("{result:?}"));
        }
    }
    Ok(())
}

fn print(side: &str, mode: Mode, delay_ms: f64, blocks: u64, measured: &Measured, hit_ratio: Option<f64>) {
    let mode = mode.to_possible_value().map(|mode| mode.get_name().to_owned());
    let Measured { block_ms, reads, writes } = measured;
    let line = json!({
        "workload": "R", "side": side, "mode": mode, "delay_ms": delay_ms, "block_ms": block_ms,
        "reads": reads / blocks, "writes": writes / blocks, "hit_ratio": hit_ratio,
    });
    println!("{line}");
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn on_ledger(arguments: &Arguments, shape: Shape, endpoint: &str, key: &PathBuf) -> Result<(), Box<dyn Error>> {
    let trust = Some(VerifierKey::parse(fs::read_to_string(key)?.trim())?);
    let open = |endpoint: &str, bytes: usize| {
        let mut options = Options::new(Client { trust: trust.clone(), ..Client::new(endpoint) });
        options.cache.bytes = bytes;
        options.timeout = Duration::from_secs(120);
        Chain::open(options)
    };
    let mut chain = open(endpoint, 0)?;
    if chain.head()?.root == EMPTY_ROOT {
        load(&mut chain, shape)?;
    }
    drop(chain);
    let mut seed = 1;
    for delay in &arguments.delays {
        let relay = Relay::start(endpoint, Duration::from_secs_f64(delay / 1e3))?;
        for mode in &arguments.modes {
            let bytes = if *mode == Mode::None { 0 } else { arguments.cache << 20 };
            let mut chain = open(relay.endpoint(), bytes)?;
            // Without a cache, there is nothing to fill, and blocks take long.
            let (warmup, count) = if *mode == Mode::None {
                (1, arguments.blocks.div_ceil(5))
            } else {
                (arguments.warmup, arguments.blocks)
            };
            let mut blocks = Blocks::new(shape, seed);
            let mut measured = Measured::default();
            for _ in 0..warmup {
                block(&mut chain, blocks.next(), *mode, &mut Measured::default())?;
            }
            let before = chain.metrics();
            for _ in 0..count {
                block(&mut chain, blocks.next(), *mode, &mut measured)?;
            }
            let after = chain.metrics();
            let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
            measured.reads = hits + misses;
            print("coppice", *mode, *delay, count, &measured, Some(hits as f64 / (hits + misses).max(1) as f64));
            seed += 1;
        }
    }
    Ok(())
}

fn load(chain: &mut Chain, shape: Shape) -> Result<(), Box<dyn Error>> {
    let mut rest = shape.state().peekable();
    while rest.peek().is_some() {
        let mut block = chain.block()?;
        for entry in rest.by_ref().take(LOADED_AT_ONCE) {
            match entry {
                blocks::Entry::Account(address, info) => block.insert_account(address, &info),
                blocks::Entry::Slot(address, slot, value) => block.insert_slot(address, slot, value),
            }
        }
        let mut staged = chain.stage(&block)?;
        chain.commit(&mut staged)?;
    }
    Ok(())
}

fn block(
    chain: &mut Chain,
    transactions: Vec<TxEnv>,
    mode: Mode,
    measured: &mut Measured,
) -> Result<(), Box<dyn Error>> {
    let clock = SystemClock::new();
    let mut block = chain.block()?;
    if mode == Mode::Prefetch {
        block.view().prefetch(&accesses_of(&transactions))?;
    }
    execute(&mut block, chain.head()?.stamp.version.0 + 1, transactions)?;
    let mut staged = chain.stage(&block)?;
    chain.commit(&mut staged)?;
    measured.block_ms.push(milliseconds(clock.now()));
    measured.writes += staged.changes().len() as u64;
    Ok(())
}

fn on_rocks(arguments: &Arguments, shape: Shape) -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let directory = arguments.dir.as_deref().unwrap_or(temporary.path());
    let rocks = Rocks::open(directory, arguments.cache << 20)?;
    if rocks.is_empty()? {
        rocks.load(shape, LOADED_AT_ONCE)?;
    }
    let (mut blocks, mut measured) = (Blocks::new(shape, 1), Measured::default());
    for number in 0..arguments.warmup + arguments.blocks {
        let transactions = blocks.next();
        let clock = SystemClock::new();
        let (reads, writes) = rocks.block(|state| execute(state, number + 1, transactions))?;
        if number >= arguments.warmup {
            measured.block_ms.push(milliseconds(clock.now()));
            (measured.reads, measured.writes) = (measured.reads + reads, measured.writes + writes);
        }
    }
    print("rocksdb", Mode::None, 0.0, arguments.blocks, &measured, None);
    Ok(())
}
