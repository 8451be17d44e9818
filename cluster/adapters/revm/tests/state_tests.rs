//! The state tests of github.com/ethereum/tests: through revm on a ledger, and beside that through
//! revm on its own database in memory. All that a test expects is compared: whether the transaction
//! is refused, the hash of its logs, and the root of Ethereum's trie over the state that it leaves.
//! That state is read back from the ledger by proven ranges.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use common::{
    FOUR_SHARDS, Ledger,
    ethereum::{Reader, root_in_memory},
};
use coppice_revm::{Block, Chain};
use revm::{
    Context, Database, DatabaseCommit, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{CfgEnv, TxEnv},
    database::State,
    primitives::{B256, Log, hardfork::SpecId, keccak256},
    state::{AccountInfo, Bytecode},
};
use revm_statetest_types::{Test, TestSuite, TestUnit};
/// Tests whose expectation is not met, each with the reason.
const EXCEPTIONS: &str = include_str!("state_tests.txt");

/// What a test leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Success or not with the gas and the output, or the reason why the transaction was refused.
    result: Result<String, String>,
    logs: B256,
    root: B256,
}

fn fixtures() -> PathBuf {
    let directory =
        env::var_os("ETHEREUM_TESTS").expect("ETHEREUM_TESTS names a checkout of github.com/ethereum/tests");
    PathBuf::from(directory).join("GeneralStateTests")
}

fn files(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of fixtures") {
        let path = entry.expect("a directory of fixtures").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "json") {
            found.insert(path);
        }
    }
}

/// A part of the tests by `STATE_TESTS`, for instance `stSStoreTest`; all without it.
fn selected(path: &Path) -> bool {
    env::var("STATE_TESTS").map_or(true, |part| path.to_string_lossy().contains(&part))
}

fn exceptions() -> BTreeMap<&'static str, &'static str> {
    let lines = EXCEPTIONS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("`{line}` has no reason"))).collect()
}

fn logs_hash(logs: &[Log]) -> B256 {
    let mut encoded = Vec::new();
    alloy_rlp::encode_list(logs, &mut encoded);
    keccak256(encoded)
}

/// Runs the transaction of a test.
fn execute<D: Database + DatabaseCommit>(
    database: D,
    unit: &TestUnit,
    test: &Test,
    spec: SpecId,
) -> (Result<String, String>, B256) {
    let mut config = CfgEnv::new_with_spec(spec);
    config.chain_id = unit.env.current_chain_id.map_or(1, |id| id.saturating_to());
    config.set_max_blobs_per_tx(if spec.is_enabled_in(SpecId::PRAGUE) { 9 } else { 6 });
    let block = unit.block_env(&mut config);
    let transaction: TxEnv = match test.tx_env(unit) {
        Ok(transaction) => transaction,
        Err(error) => return (Err(error.to_string()), logs_hash(&[])),
    };
    let context = Context::mainnet().with_block(block).with_cfg(config).with_db(database);
    match context.build_mainnet().transact_commit(transaction) {
        Ok(result) => (Ok(format!("{result:?}")), logs_hash(result.logs())),
        Err(error) => (Err(error.to_string()), logs_hash(&[])),
    }
}

/// revm alone.
fn in_memory(unit: &TestUnit, test: &Test, spec: SpecId) -> Outcome {
    let mut state = State::builder().with_cached_prestate(unit.state()).build();
    let (result, logs) = execute(&mut state, unit, test, spec);
    Outcome { result, logs, root: root_in_memory(&state) }
}

/// A ledger on which each unit begins with nothing.
struct Judge {
    ledger: Ledger,
    reader: Reader,
}

impl Judge {
    fn new(splits: &[&str]) -> Self {
        let ledger = Ledger::start(splits);
        let reader = Reader::new(&ledger);
        Self { ledger, reader }
    }

    fn open(&self) -> Chain {
        self.reader.roll_back(0);
        self.ledger.open()
    }

    fn on_ledger(&self, chain: &mut Chain, unit: &TestUnit, test: &Test, spec: SpecId) -> Outcome {
        let mut block = chain.block().expect("a block");
        let (result, logs) = execute(&mut block, unit, test, spec);
        let mut staged = chain.stage(&block).expect("a stage");
        let head = chain.commit(&mut staged).expect("a commit");
        assert_eq!(head.root, staged.root());
        Outcome { result, logs, root: self.reader.root() }
    }
}

/// Writes the state before the transaction.
fn begin(block: &mut Block, unit: &TestUnit) {
    for (address, account) in &unit.pre {
        let code =
            Bytecode::new_raw_checked(account.code.clone()).unwrap_or(Bytecode::new_legacy(account.code.clone()));
        let info = AccountInfo::new(account.balance, account.nonce, keccak256(&account.code), code);
        block.insert_account(*address, &info);
        account.storage.iter().for_each(|(slot, value)| block.insert_slot(*address, *slot, *value));
    }
    let number: u64 = unit.env.current_number.saturating_to();
    for before in number.saturating_sub(256)..number {
        block.insert_block_hash(before, keccak256(before.to_string()));
    }
}

fn judge(splits: &[&str]) {
    let (root, mut paths) = (fixtures(), BTreeSet::new());
    files(&root, &mut paths);
    let (judge, exceptions) = (Judge::new(splits), exceptions());
    let (mut count, mut failed, mut unused) = (0_usize, Vec::new(), exceptions.clone());
    for path in paths.iter().filter(|path| selected(path)) {
        let text = fs::read_to_string(path).expect("a file of fixtures");
        let file = path.strip_prefix(&root).expect("a part of it").display().to_string();
        let suite: TestSuite = match serde_json::from_str(&text) {
            Ok(suite) => suite,
            // The types of revm can't read it. Its tests count as one.
            Err(_) if unused.remove(&*file).is_some() => continue,
            Err(error) => {
                failed.push(format!("{file}: {error}"));
                continue;
            }
        };
        for (name, unit) in &suite.0 {
            let mut chain = judge.open();
            let mut block = chain.block().expect("a block");
            begin(&mut block, unit);
            let mut staged = chain.stage(&block).expect("a stage");
            chain.commit(&mut staged).expect("a commit");
            for (spec, tests) in &unit.post {
                for (at, test) in tests.iter().enumerate() {
                    let spec_id = spec.to_spec_id();
                    let id = format!("{file}/{name}/{spec:?}/{at}");
                    let alone = in_memory(unit, test, spec_id);
                    let stored = judge.on_ledger(&mut chain, unit, test, spec_id);
                    chain.set_head(staged.root()).expect("a rollback to the state before");
                    assert_eq!(stored, alone, "{id}: on the ledger, and in memory");
                    let met = (alone.result.is_err(), alone.logs, alone.root)
                        == (test.expect_exception.is_some(), test.logs, test.hash);
                    let excepted = unused.remove(&*id).is_some();
                    if met == excepted {
                        failed.push(format!(
                            "{id}: {}",
                            if met { "a new pass".to_owned() } else { format!("{alone:?}") }
                        ));
                    }
                    count += 1;
                }
            }
        }
    }
    if env::var_os("STATE_TESTS").is_none() {
        assert!(unused.is_empty(), "exceptions that are no tests: {unused:?}");
    }
    assert!(count > 0, "no tests in {root:?}");
    println!("{count} state tests, {} exceptions, {} shards", exceptions.len(), splits.len() + 1);
    assert!(failed.is_empty(), "{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn state_tests_on_one_shard() {
    judge(&[]);
}

#[test]
fn state_tests_on_four_shards() {
    judge(&FOUR_SHARDS);
}
