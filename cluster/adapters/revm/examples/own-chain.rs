//! A chain of its own whose state is in a ledger: a few blocks of payments, and a reorganization.
//!
//! Takes the endpoint of a ledger, and the file of its key. Each further run goes on from the
//! newest block.

use std::{env, error::Error, fs};

use coppice_client::Options as Client;
use coppice_revm::{Chain, EMPTY_ROOT, Head, Options, accesses_of};
use coppice_verify::note::VerifierKey;
use revm::{
    Context, DatabaseRef, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{BlockEnv, TxEnv},
    primitives::{Address, TxKind, U256, address},
    state::AccountInfo,
};

const ALICE: Address = address!("00000000000000000000000000000000000a11ce");
const BOB: Address = address!("0000000000000000000000000000000000000b0b");

fn main() -> Result<(), Box<dyn Error>> {
    let (Some(endpoint), Some(key)) = (env::args().nth(1), env::args().nth(2)) else {
        return Err("name the endpoint of a ledger, and the file of its key".into());
    };
    let trust = Some(VerifierKey::parse(fs::read_to_string(key)?.trim())?);
    let mut chain = Chain::open(Options::new(Client { trust, ..Client::new(endpoint) }))?;

    if chain.head()?.root == EMPTY_ROOT {
        let mut block = chain.block()?;
        block.insert_account(ALICE, &AccountInfo { balance: U256::from(1_000_000), ..AccountInfo::default() });
        let mut staged = chain.stage(&block)?;
        show("genesis", chain.commit(&mut staged)?);
    }
    let start = chain.head()?;
    for _ in 0..3 {
        show("block", pay(&mut chain, 10)?);
    }
    let before = chain.view(start.root)?;
    let now = chain.head()?.root;
    println!("Bob has {}, and had {} before", balance(&chain.view(now)?, BOB)?, balance(&before, BOB)?);

    // The blocks of another proposer are chosen.
    show("back to", chain.set_head(start.root)?);
    let head = pay(&mut chain, 70)?;
    show("block", head);
    println!("Bob has {}", balance(&chain.view(head.root)?, BOB)?);
    match chain.view(now) {
        Err(error) => println!("{error}"),
        Ok(_) => return Err("a state that was rolled back can be read".into()),
    }
    Ok(())
}

/// Runs and writes a block in which Alice pays Bob.
fn pay(chain: &mut Chain, amount: u64) -> Result<Head, Box<dyn Error>> {
    let mut block = chain.block()?;
    let nonce = block.view().basic_ref(ALICE)?.map_or(0, |info| info.nonce);
    let payment = TxEnv {
        caller: ALICE,
        kind: TxKind::Call(BOB),
        value: U256::from(amount),
        gas_limit: 21_000,
        nonce,
        ..TxEnv::default()
    };
    block.view().prefetch(&accesses_of([&payment]))?;
    let number = chain.head()?.stamp.version.0 + 1;
    let environment = BlockEnv { number: U256::from(number), ..BlockEnv::default() };
    let mut evm = Context::mainnet().with_block(environment).with_db(&mut block).build_mainnet();
    evm.transact_commit(payment)?;
    let mut staged = chain.stage(&block)?;
    // The nodes of the chain would agree on a header with this root.
    let root = staged.root();
    let head = chain.commit(&mut staged)?;
    assert_eq!(head.root, root, "the version has the root that was agreed on");
    Ok(head)
}

fn balance(
    state: &impl DatabaseRef<Error = coppice_revm::Error>,
    address: Address,
) -> Result<U256, coppice_revm::Error> {
    Ok(state.basic_ref(address)?.map_or(U256::ZERO, |info| info.balance))
}

fn show(what: &str, head: Head) {
    println!("{what:8} version {} of epoch {}, root {}", head.stamp.version.0, head.stamp.epoch.0, head.root);
}
