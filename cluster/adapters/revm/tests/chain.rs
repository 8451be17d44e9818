//! Blocks on a ledger: against revm's database in memory, and with restarts, rollbacks, lost
//! answers, other writers and readers beside them.

mod common;

use std::sync::atomic::Ordering;

use common::{
    Cutter, FOUR_SHARDS, Ledger,
    ethereum::{Reader, root_in_memory},
};
use coppice_proto::v1::{self, operation::Change};
use coppice_revm::{Block, Chain, EMPTY_ROOT, Error, Head, Options, accesses_of};
use coppice_types::Reason;
use revm::{
    Context, DatabaseRef, ExecuteCommitEvm, ExecuteEvm, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv, TxEnv},
    database::{CacheDB, EmptyDB, State},
    database_interface::{DBErrorMarker, Database, DatabaseCommit, TryDatabaseCommit, WrapDatabaseRef},
    primitives::{Address, B256, Bytes, TxKind, U256, address, hardfork::SpecId, hex},
    state::{AccountInfo, Bytecode},
};

const SENDER: Address = address!("00000000000000000000000000000000000005e4");
const FACTORY: Address = address!("000000000000000000000000000000000000fac7");

/// Adds its second word to the slot that its first word names. Without data, it destroys itself.
const CHILD: [u8; 20] = hex!("36 6006 57 33 ff 5b 6020 35 6000 35 54 01 6000 35 55 00");

/// Creates a child with its data for a salt.
fn factory() -> (Vec<u8>, Vec<u8>) {
    let init = [&[0x73][..], &CHILD, &hex!("6000 52 6014 600c f3")].concat();
    let code = [&[0x7c][..], &init, &hex!("6000 52 6000 35 601d 6003 6000 f5 50 00")].concat();
    (init, code)
}

fn child(salt: u64) -> Address {
    FACTORY.create2_from_code(B256::from(U256::from(salt)), factory().0)
}

/// A transaction of the sender. Nonces are not checked.
fn call(to: Address, value: u64, data: &[u64]) -> TxEnv {
    let data: Vec<u8> = data.iter().flat_map(|word| U256::from(*word).to_be_bytes::<32>()).collect();
    TxEnv {
        caller: SENDER,
        kind: TxKind::Call(to),
        value: U256::from(value),
        data: Bytes::from(data),
        gas_limit: 1_000_000,
        ..TxEnv::default()
    }
}

fn config(spec: SpecId) -> CfgEnv {
    let mut config = CfgEnv::new_with_spec(spec);
    config.disable_nonce_check = true;
    config
}

/// Runs transactions one after the other, and commits each to the database.
fn run<D: Database + DatabaseCommit>(database: D, spec: SpecId, transactions: &[TxEnv]) {
    let block = BlockEnv { number: U256::from(1), ..BlockEnv::default() };
    let context = Context::mainnet().with_cfg(config(spec)).with_block(block).with_db(database);
    let mut evm = context.build_mainnet();
    for transaction in transactions {
        evm.transact_commit(transaction.clone()).map_err(|_| "refused").expect("a valid transaction");
    }
}

fn genesis() -> [(Address, AccountInfo); 2] {
    let sender = AccountInfo { balance: U256::from(1_000_000_000_u64), ..AccountInfo::default() };
    let factory = AccountInfo::default().with_code(Bytecode::new_legacy(factory().1.into()));
    [(SENDER, sender), (FACTORY, AccountInfo { nonce: 1, ..factory })]
}

fn begin(chain: &mut Chain) -> Head {
    let mut block = chain.block().expect("a block");
    for (address, info) in genesis() {
        block.insert_account(address, &info);
    }
    write(chain, &block).expect("the first block")
}

fn write(chain: &mut Chain, block: &Block) -> Result<Head, Error> {
    let mut staged = chain.stage(block)?;
    chain.commit(&mut staged)
}

/// Runs a block on the newest state, and writes it.
fn next(chain: &mut Chain, transactions: &[TxEnv]) -> Result<Head, Error> {
    let mut block = chain.block()?;
    run(&mut block, SpecId::CANCUN, transactions);
    write(chain, &block)
}

fn balance(view: &impl DatabaseRef<Error = Error>, address: Address) -> Result<u64, Error> {
    Ok(view.basic_ref(address)?.map_or(0, |info| info.balance.to()))
}

/// A chain in a ledger, and the same chain in memory.
struct Twins {
    chain: Chain,
    state: State<EmptyDB>,
    reader: Reader,
}

impl Twins {
    fn begin(ledger: &Ledger) -> Self {
        let (mut chain, reader) = (ledger.open(), Reader::new(ledger));
        begin(&mut chain);
        let mut memory = CacheDB::<EmptyDB>::default();
        let mut state = State::builder().with_database(EmptyDB::default()).build();
        for (address, info) in genesis() {
            memory.insert_account_info(address, info.clone());
            if let Some(code) = &info.code {
                state.cache.contracts.insert(info.code_hash, code.clone());
            }
            state.insert_account(address, info);
        }
        let twins = Self { chain, state, reader };
        twins.compare(0);
        twins
    }

    fn compare(&self, number: usize) {
        assert_eq!(self.reader.root(), root_in_memory(&self.state), "the state after block {number}");
    }

    /// Runs a block in both. With `together`, the ledger gets what all transactions change at once.
    fn run(&mut self, number: usize, spec: SpecId, transactions: &[TxEnv], together: bool) {
        run(&mut self.state, spec, transactions);
        let mut block = self.chain.block().expect("a block");
        if together {
            let view = block.view().clone();
            view.prefetch(&accesses_of(transactions)).expect("reads");
            let context = Context::mainnet().with_cfg(config(spec)).with_db(WrapDatabaseRef(view));
            let mut evm = context.build_mainnet();
            for transaction in transactions {
                evm.transact_one(transaction.clone()).expect("a valid transaction");
            }
            let changes = evm.finalize();
            self.chain.try_commit(changes).expect("a commit");
        } else {
            run(&mut block, spec, transactions);
            write(&mut self.chain, &block).expect("a commit");
        }
        self.compare(number);
    }
}

/// A number below `below`, from a seed.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Contracts are created, filled, destroyed and created again, within blocks and across them, paid
/// before they exist, and touched while they are empty.
#[test]
fn a_storage_ends_with_its_account() {
    for (together, spec) in [(false, SpecId::SHANGHAI), (true, SpecId::SHANGHAI), (false, SpecId::CANCUN)] {
        let ledger = Ledger::start(&FOUR_SHARDS);
        let mut twins = Twins::begin(&ledger);
        let seed = &mut 7;
        for number in 1..60 {
            let transactions: Vec<TxEnv> = (0..1 + random(seed, 5))
                .map(|_| {
                    let salt = random(seed, 3);
                    match random(seed, 8) {
                        0..2 => call(FACTORY, 0, &[salt]),
                        2..5 => call(child(salt), 0, &[random(seed, 4), 1 + random(seed, 2)]),
                        5 => call(child(salt), 0, &[random(seed, 4), 0]),
                        6 => call(child(salt), random(seed, 2), &[]),
                        _ => call(Address::with_last_byte(random(seed, 9) as u8 + 1), 0, &[]),
                    }
                })
                .collect();
            twins.run(number, spec, &transactions, together);
        }
        let lived = (0..3).filter(|salt| twins.state.basic(child(*salt)).expect("no error").is_some()).count();
        assert!(lived > 0, "the seed leaves something to compare");
    }
}

#[test]
fn a_block_that_changes_nothing_is_no_version() {
    let ledger = Ledger::start(&[]);
    let (mut chain, reader) = (ledger.open(), Reader::new(&ledger));
    assert_eq!(chain.head().expect("a head").root, EMPTY_ROOT);
    let head = begin(&mut chain);
    // It adds to a slot, and takes that away: by the wrapping of words.
    run_and_undo(&mut chain);
    assert_eq!(chain.head().expect("a head").root, head.root);
    assert_eq!(reader.head().version, head.stamp.version.0);
}

fn run_and_undo(chain: &mut Chain) {
    let block = chain.block().expect("a block");
    let staged = chain.stage(&block).expect("nothing to stage");
    assert_eq!(staged.root(), block.parent());
    chain.discard(staged);
    write(chain, &block).expect("nothing to write");
}

#[test]
fn the_root_of_a_stage_is_that_of_its_version() {
    let ledger = Ledger::start(&FOUR_SHARDS);
    let (mut chain, reader) = (ledger.open(), Reader::new(&ledger));
    begin(&mut chain);
    let mut block = chain.block().expect("a block");
    run(&mut block, SpecId::CANCUN, &[call(FACTORY, 0, &[1]), call(child(1), 0, &[5, 6])]);
    let mut staged = chain.stage(&block).expect("a stage");
    let unwritten = chain.view(staged.root()).map(|view| view.stamp());
    assert!(matches!(unwritten, Err(Error::UnknownRoot(root)) if root == staged.root()), "{unwritten:?}");
    let head = chain.commit(&mut staged).expect("a commit");
    assert_eq!(chain.commit(&mut staged).expect("it is written already"), head);
    let newest = reader.runtime.block_on(async {
        let options = ledger.client_at(&ledger.endpoint);
        coppice_client::Client::new(options).expect("a client").newest().await
    });
    let newest = newest.expect("a header");
    assert_eq!((B256::from(newest.state_root.0), newest.stamp), (staged.root(), head.stamp));
    // A program without a cache finds the same.
    let mut fresh = ledger.open();
    assert_eq!(fresh.head().expect("a head"), head);
    let view = fresh.view(head.root).expect("a view");
    assert_eq!(view.storage_ref(child(1), U256::from(5)).expect("a slot"), U256::from(6));
    let info = view.basic_ref(child(1)).expect("an account").expect("it exists");
    assert_eq!(view.code_by_hash_ref(info.code_hash).expect("a code").original_bytes()[..], CHILD);
}

#[test]
fn hashes_of_blocks_are_those_that_were_written_and_others_are_refused() {
    let ledger = Ledger::start(&[]);
    let mut chain = ledger.open();
    begin(&mut chain);
    let mut block = chain.block().expect("a block");
    block.insert_block_hash(1, B256::repeat_byte(9));
    assert_eq!(block.block_hash(1).expect("a hash"), B256::repeat_byte(9));
    let head = write(&mut chain, &block).expect("a commit");
    let view = chain.view(head.root).expect("a view");
    assert_eq!(view.block_hash_ref(1).expect("a hash"), B256::repeat_byte(9));
    let error = view.block_hash_ref(2).expect_err("no hash");
    assert!(matches!(error, Error::UnknownBlock(2)) && error.is_fatal(), "{error:?}");
}

#[test]
fn a_rollback_gives_the_old_state_back_and_refuses_what_it_undid() {
    let ledger = Ledger::start(&FOUR_SHARDS);
    let mut chain = ledger.open();
    let first = begin(&mut chain);
    let to = Address::repeat_byte(7);
    let paid = next(&mut chain, &[call(to, 5, &[])]).expect("a block");
    let dead = chain.view(paid.root).expect("a view");
    assert_eq!(balance(&dead, to).expect("a read"), 5);
    let back = chain.set_head(first.root).expect("a rollback");
    assert_eq!((back.root, back.stamp.version), (first.root, first.stamp.version));
    assert!(back.stamp.epoch > first.stamp.epoch);
    for chain in [&mut chain, &mut ledger.open()] {
        let gone = chain.view(paid.root).map(|view| view.stamp());
        assert!(matches!(gone, Err(Error::UnknownRoot(root)) if root == paid.root), "{gone:?}");
    }
    let refused = [balance(&dead, to), balance(&dead, Address::repeat_byte(8))];
    for refused in refused {
        assert_eq!(refused.expect_err("it was rolled back").reason(), Some(Reason::RolledBack));
    }
    assert_eq!(balance(&chain.view(first.root).expect("a view"), to).expect("a read"), 0);
    let again = next(&mut chain, &[call(to, 5, &[])]).expect("a block");
    assert_ne!(again.root, paid.root, "the root covers the epoch");
    assert_eq!(balance(&chain.view(again.root).expect("a view"), to).expect("a read"), 5);
}

#[test]
fn a_restart_of_the_ledger_and_of_the_program_loses_no_block() {
    let mut ledger = Ledger::start(&FOUR_SHARDS);
    let mut chain = ledger.open();
    begin(&mut chain);
    let to = Address::repeat_byte(7);
    let head = next(&mut chain, &[call(to, 5, &[])]).expect("a block");
    let mut block = chain.block().expect("a block");
    run(&mut block, SpecId::CANCUN, &[call(to, 1, &[])]);
    let mut staged = chain.stage(&block).expect("a stage");
    ledger.restart();
    // The stage is lost, and made again.
    let written = chain.commit(&mut staged).expect("a commit");
    assert_eq!((written.root, written.stamp.version.0), (staged.root(), head.stamp.version.0 + 1));
    ledger.restart();
    let mut chain = ledger.open();
    assert_eq!(chain.head().expect("a head").root, written.root);
    assert_eq!(balance(&chain.view(written.root).expect("a view"), to).expect("a read"), 6);
    assert_eq!(balance(&chain.view(head.root).expect("a view"), to).expect("a read"), 5);
}

#[test]
fn a_ledger_that_is_away_is_an_error_that_passes() {
    let mut ledger = Ledger::start(&[]);
    let mut options = ledger.options();
    options.client.patience = std::time::Duration::from_millis(50);
    let mut chain = Chain::open(options).expect("a chain");
    let head = begin(&mut chain);
    let view = chain.view(head.root).expect("a view");
    ledger.kill();
    let error = balance(&view, Address::repeat_byte(7)).expect_err("it is away");
    assert!(!error.is_fatal() && !error.is_untrusted(), "{error:?}");
    assert!(balance(&view, SENDER).expect("it is cached") > 0);
    ledger.restart();
    assert_eq!(balance(&view, Address::repeat_byte(7)).expect("a read"), 0);
}

#[test]
fn lost_answers_write_no_block_twice() {
    const BLOCKS: u64 = 40;
    let ledger = Ledger::start(&FOUR_SHARDS);
    // Connections live for a different number of bytes each, so every call loses an answer once.
    let cutter = Cutter::start(&ledger, |cuts| 3_000 + cuts * 977 % 20_000);
    let mut chain = Chain::open(Options::new(ledger.client_at(&cutter.endpoint))).expect("a chain");
    begin(&mut chain);
    let to = Address::repeat_byte(7);
    for _ in 0..BLOCKS {
        let mut block = chain.block().expect("a block");
        run(&mut block, SpecId::CANCUN, &[call(to, 1, &[])]);
        let mut staged = chain.stage(&block).expect("a stage");
        while let Err(error) = chain.commit(&mut staged) {
            assert!(!error.is_untrusted(), "{error:?}");
        }
    }
    assert!(cutter.cuts.load(Ordering::Relaxed) > 5, "connections were broken");
    let mut other = ledger.open();
    let head = other.head().expect("a head");
    assert_eq!(head.stamp.version.0, BLOCKS + 1);
    assert_eq!(balance(&other.view(head.root).expect("a view"), to).expect("a read"), BLOCKS);
}

#[test]
fn another_writer_is_found_and_never_overwritten() {
    let ledger = Ledger::start(&[]);
    let mut chain = ledger.open();
    begin(&mut chain);
    let mut other = ledger.open();
    let to = Address::repeat_byte(7);
    let mut late = other.block().expect("a block");
    run(&mut late, SpecId::CANCUN, &[call(to, 1, &[])]);
    let head = next(&mut chain, &[call(to, 2, &[])]).expect("a block");
    let refused = other.stage(&late).map(|staged| staged.root());
    assert!(
        matches!(refused, Err(Error::NotHead { parent, head: now }) if parent == late.parent() && now == head.root)
    );
    assert_eq!(other.head().expect("it has looked"), head);
    // A stage that another block has overtaken.
    let mut block = other.block().expect("a block");
    run(&mut block, SpecId::CANCUN, &[call(to, 1, &[])]);
    let mut staged = other.stage(&block).expect("a stage");
    let head = next(&mut chain, &[call(to, 2, &[])]).expect("a block");
    assert!(matches!(other.commit(&mut staged), Err(Error::NotHead { .. })));
    assert_eq!(balance(&other.view(head.root).expect("a view"), to).expect("a read"), 4);

    // A program that is no chain.
    let reader = Reader::new(&ledger);
    let put = v1::Operation { key: "other".into(), change: Some(Change::Put("value".into())) };
    let batch = v1::Batch { operations: vec![put], ..v1::Batch::default() };
    reader.runtime.block_on(reader.client.commit(batch, false)).expect("a commit");
    let stopped = next(&mut chain, &[call(to, 2, &[])]);
    assert!(matches!(stopped, Err(Error::Moved(_))), "{stopped:?}");
    assert!(matches!(Chain::open(ledger.options()), Err(Error::Moved(_))));
    reader.roll_back(head.stamp.version.0);
    let next = next(&mut chain, &[call(to, 2, &[])]).expect("the chain goes on");
    assert_eq!(next.stamp.version.0, head.stamp.version.0 + 1);
}

#[test]
fn views_are_read_while_the_chain_moves() {
    const BLOCKS: u64 = 20;
    let ledger = Ledger::start(&FOUR_SHARDS);
    let mut chain = ledger.open();
    begin(&mut chain);
    let to = Address::repeat_byte(7);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for number in 1..=BLOCKS {
            let head = next(&mut chain, &[call(to, 1, &[])]).expect("a block");
            let view = chain.view(head.root).expect("a view");
            readers.push(scope.spawn(move || {
                // Some of these are in no cache.
                for other in 0..20_u8 {
                    assert_eq!(balance(&view, Address::with_last_byte(100 + other)).expect("a read"), 0);
                    assert_eq!(balance(&view, to).expect("a read"), number);
                }
            }));
        }
        readers.into_iter().for_each(|reader| reader.join().expect("it agrees"));
    });
}

/// Calls come from within tasks of another runtime, one that has a single thread.
#[test]
fn a_chain_is_used_within_a_runtime() {
    let ledger = Ledger::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut chain = ledger.open();
        begin(&mut chain);
        let to = Address::repeat_byte(7);
        let head = next(&mut chain, &[call(to, 3, &[])]).expect("a block");
        let view = chain.view(head.root).expect("a view");
        for _ in 0..1_000 {
            assert_eq!(balance(&view, to).expect("a read"), 3);
        }
    });
}

#[test]
fn what_is_named_is_read_at_once() {
    let ledger = Ledger::start(&FOUR_SHARDS);
    let mut chain = ledger.open();
    begin(&mut chain);
    let transactions: Vec<TxEnv> =
        (0..3).flat_map(|salt| [call(FACTORY, 0, &[salt]), call(child(salt), 0, &[5, 6])]).collect();
    let head = next(&mut chain, &transactions).expect("a block");
    let mut fresh = ledger.open();
    let view = fresh.view(head.root).expect("a view");
    let mut accesses = accesses_of(&transactions);
    accesses.entry(child(0)).or_default().push(U256::from(5));
    view.prefetch(&accesses).expect("reads");
    let before = fresh.metrics().misses;
    for address in [SENDER, FACTORY, child(0), child(1), child(2)] {
        let info = view.basic_ref(address).expect("an account").expect("it exists");
        view.code_by_hash_ref(info.code_hash).expect("a code");
    }
    assert_eq!(view.storage_ref(child(0), U256::from(5)).expect("a slot"), U256::from(6));
    assert_eq!(fresh.metrics().misses, before);
}
