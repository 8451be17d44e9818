//! The state and the blocks, as functions of a seed.

use std::collections::HashSet;

use coppice_env::{Rng, SimRng};
use revm::{
    context::TxEnv,
    context_interface::transaction::{AccessList, AccessListItem},
    primitives::{Address, B256, Bytes, StorageKey, StorageValue, TxKind, U256, keccak256},
    state::{AccountInfo, Bytecode},
};

/// Transactions of a block, and slots that each reads.
const TRANSACTIONS: usize = 200;
const SLOTS: usize = 8;
/// Of these, the first ones are written.
const WRITTEN: usize = 2;
/// Contracts that share the slots.
const CONTRACTS: u64 = 16;
const EXPONENT: f64 = 0.99;

/// The size of the state.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub accounts: u64,
    pub slots: u64,
}

/// A part of the state at the beginning.
pub enum Entry {
    Account(Address, AccountInfo),
    Slot(Address, StorageKey, StorageValue),
}

impl Shape {
    pub fn state(self) -> impl Iterator<Item = Entry> {
        let code = Bytecode::new_legacy(code());
        let contract = move |at| {
            let info = AccountInfo { nonce: 1, ..AccountInfo::default() }.with_code(code.clone());
            Entry::Account(contract(at), info)
        };
        let account = |at| {
            let info = AccountInfo { balance: U256::from(1_000_000_000_u64), ..AccountInfo::default() };
            Entry::Account(account(at), info)
        };
        let slot = |at| {
            let (contract, slot) = slot(at);
            Entry::Slot(contract, slot, U256::from(at + 1))
        };
        (0..CONTRACTS).map(contract).chain((0..self.accounts).map(account)).chain((0..self.slots).map(slot))
    }
}

fn account(at: u64) -> Address {
    Address::from_word(keccak256(at.to_be_bytes()))
}

fn contract(at: u64) -> Address {
    Address::from_word(keccak256([&b"contract"[..], &at.to_be_bytes()].concat()))
}

fn slot(at: u64) -> (Address, StorageKey) {
    (contract(at % CONTRACTS), U256::from(at / CONTRACTS))
}

/// The code of a contract. The first word of the data is a receiver, to which it passes the value
/// on. The others are slots, which it reads. It adds one to the first of them.
fn code() -> Bytes {
    let mut code = Vec::new();
    for at in 0..SLOTS {
        let [high, low] = (32 * (at as u16 + 1)).to_be_bytes();
        // PUSH2 offset, CALLDATALOAD, SLOAD
        code.extend([0x61, high, low, 0x35, 0x54]);
        if at < WRITTEN {
            // PUSH1 1, ADD, PUSH2 offset, CALLDATALOAD, SSTORE
            code.extend([0x60, 1, 0x01, 0x61, high, low, 0x35, 0x55]);
        } else {
            // POP
            code.push(0x50);
        }
    }
    // No data and no answer; CALLVALUE, PUSH1 0, CALLDATALOAD, GAS, CALL, POP, STOP
    code.extend([0x60, 0, 0x60, 0, 0x60, 0, 0x60, 0, 0x34, 0x60, 0, 0x35, 0x5a, 0xf1, 0x50, 0x00]);
    code.into()
}

/// Ranks from 0 on, by Zipf's law: the inversion of the integral of its density.
#[derive(Debug)]
struct Zipf {
    below: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        Self { below: (count as f64 + 1.0).powf(1.0 - EXPONENT) - 1.0 }
    }

    fn next(&self, rng: &mut SimRng) -> u64 {
        let part = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        ((self.below * part + 1.0).powf(1.0 / (1.0 - EXPONENT)) - 1.0) as u64
    }
}

/// Generates blocks.
pub struct Blocks {
    rng: SimRng,
    shape: Shape,
    accounts: Zipf,
    slots: Zipf,
}

impl Blocks {
    pub fn new(shape: Shape, seed: u64) -> Self {
        let (accounts, slots) = (Zipf::new(shape.accounts), Zipf::new(shape.slots));
        Self { rng: SimRng::new(seed), shape, accounts, slots }
    }

    /// The transactions of the next block. No account and no slot occurs twice in a block.
    pub fn next(&mut self) -> Vec<TxEnv> {
        let mut accounts = distinct(2 * TRANSACTIONS, || {
            // The ranks are spread over the accounts by a permutation.
            spread(self.accounts.next(&mut self.rng), self.shape.accounts)
        });
        let mut taken = HashSet::new();
        let mut transactions = Vec::with_capacity(TRANSACTIONS);
        while let (Some(from), Some(to)) = (accounts.pop(), accounts.pop()) {
            let mut slots = Vec::with_capacity(SLOTS);
            let mut of = None;
            while slots.len() < SLOTS {
                let at = spread(self.slots.next(&mut self.rng), self.shape.slots);
                let of = *of.get_or_insert(at % CONTRACTS);
                let at = at - at % CONTRACTS + of;
                if at < self.shape.slots && taken.insert(at) {
                    slots.push(at);
                }
            }
            transactions.push(transaction(account(from), account(to), &slots));
        }
        transactions
    }
}

/// A permutation of the numbers below `count`, unless its factor divides that.
fn spread(rank: u64, count: u64) -> u64 {
    const PRIME: u128 = 2_147_483_647;
    ((u128::from(rank) * PRIME) % u128::from(count)) as u64
}

fn distinct(count: usize, mut next: impl FnMut() -> u64) -> Vec<u64> {
    let (mut taken, mut all) = (HashSet::new(), Vec::with_capacity(count));
    while all.len() < count {
        let it = next();
        if taken.insert(it) {
            all.push(it);
        }
    }
    all
}

/// A transaction that names all that it reads.
fn transaction(from: Address, to: Address, slots: &[u64]) -> TxEnv {
    let (contract, _) = slot(slots[0]);
    let slots: Vec<B256> = slots.iter().map(|at| B256::from(slot(*at).1)).collect();
    let data: Vec<u8> = to.into_word().iter().copied().chain(slots.iter().flat_map(|slot| slot.0)).collect();
    let access_list = AccessList(vec![
        AccessListItem { address: contract, storage_keys: slots },
        AccessListItem { address: to, storage_keys: Vec::new() },
    ]);
    TxEnv {
        tx_type: 1,
        caller: from,
        kind: TxKind::Call(contract),
        value: U256::from(1),
        data: data.into(),
        gas_limit: 200_000,
        access_list,
        ..TxEnv::default()
    }
}
