//! A flat state in RocksDB, which is synced with each block. There is no root.

use std::{cell::Cell, error::Error, path::Path};

use revm::{
    database::{BundleState, State, states::bundle_state::BundleRetention},
    database_interface::{DBErrorMarker, DatabaseRef, WrapDatabaseRef},
    primitives::{Address, B256, KECCAK_EMPTY, StorageKey, StorageValue, U256},
    state::{AccountInfo, Bytecode},
};
use rocksdb::{BlockBasedOptions, Cache, DB, Options, WriteBatch, WriteOptions};

use crate::blocks::{Entry, Shape};

/// An error of RocksDB, or a record that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("rocksdb: {0}")]
pub struct Failed(String);

impl DBErrorMarker for Failed {}

impl From<rocksdb::Error> for Failed {
    fn from(error: rocksdb::Error) -> Self {
        Self(error.to_string())
    }
}

pub struct Rocks {
    db: DB,
    reads: Cell<u64>,
}

fn account_key(address: Address) -> Vec<u8> {
    [&b"a"[..], address.as_slice()].concat()
}

fn slot_key(address: Address, slot: StorageKey) -> Vec<u8> {
    [&b"s"[..], address.as_slice(), &slot.to_be_bytes::<32>()].concat()
}

fn code_key(hash: B256) -> Vec<u8> {
    [&b"c"[..], hash.as_slice()].concat()
}

fn put_account(batch: &mut WriteBatch, address: Address, info: &AccountInfo) {
    let value = [&info.nonce.to_be_bytes()[..], info.code_hash.as_slice(), &info.balance.to_be_bytes_trimmed_vec()];
    batch.put(account_key(address), value.concat());
}

fn put_code(batch: &mut WriteBatch, hash: B256, code: &Bytecode) {
    batch.put(code_key(hash), code.original_byte_slice());
}

impl Rocks {
    /// Opens a directory, with so much memory for cached blocks.
    pub fn open(directory: &Path, cache_bytes: usize) -> Result<Self, Failed> {
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&Cache::new_lru_cache(cache_bytes));
        tables.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        Ok(Self { db: DB::open(&options, directory)?, reads: Cell::new(0) })
    }

    pub fn is_empty(&self) -> Result<bool, Failed> {
        Ok(self.db.iterator(rocksdb::IteratorMode::Start).next().transpose()?.is_none())
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), Failed> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        Ok(self.db.write_opt(batch, &options)?)
    }

    pub fn load(&self, shape: Shape, at_once: usize) -> Result<(), Failed> {
        let mut rest = shape.state().peekable();
        while rest.peek().is_some() {
            let mut batch = WriteBatch::default();
            for entry in rest.by_ref().take(at_once) {
                match entry {
                    Entry::Account(address, info) => {
                        if let Some(code) = info.code.as_ref().filter(|_| info.code_hash != KECCAK_EMPTY) {
                            put_code(&mut batch, info.code_hash, code);
                        }
                        put_account(&mut batch, address, &info);
                    }
                    Entry::Slot(address, slot, value) => {
                        batch.put(slot_key(address, slot), value.to_be_bytes_trimmed_vec());
                    }
                }
            }
            self.write(&batch)?;
        }
        Ok(self.db.flush()?)
    }

    /// Runs and writes a block. Returns the number of reads and of writes.
    pub fn block<'a>(
        &'a self,
        execute: impl FnOnce(&mut State<WrapDatabaseRef<&'a Self>>) -> Result<(), String>,
    ) -> Result<(u64, u64), Box<dyn Error>> {
        let before = self.reads.get();
        let mut state = State::builder().with_database(WrapDatabaseRef(self)).with_bundle_update().build();
        execute(&mut state)?;
        state.merge_transitions(BundleRetention::PlainState);
        let batch = changes(&state.take_bundle());
        self.write(&batch)?;
        Ok((self.reads.get() - before, batch.len() as u64))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.db.get(key)?)
    }
}

/// The batch of a block. No block of the workload destroys an account.
fn changes(bundle: &BundleState) -> WriteBatch {
    let mut batch = WriteBatch::default();
    for (hash, code) in &bundle.contracts {
        put_code(&mut batch, *hash, code);
    }
    for (address, account) in &bundle.state {
        if let Some(info) = account.info.as_ref().filter(|_| account.is_info_changed()) {
            put_account(&mut batch, *address, info);
        }
        for (slot, value) in account.storage.iter().filter(|(_, slot)| slot.is_changed()) {
            batch.put(slot_key(*address, *slot), value.present_value.to_be_bytes_trimmed_vec());
        }
    }
    batch
}

impl DatabaseRef for Rocks {
    type Error = Failed;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Failed> {
        let Some(value) = self.get(&account_key(address))? else { return Ok(None) };
        let (Some((nonce, rest)), malformed) = (value.split_first_chunk::<8>(), || Failed("an account".to_owned()))
        else {
            return Err(Failed("an account".to_owned()));
        };
        let (code, balance) = rest.split_first_chunk::<32>().ok_or_else(malformed)?;
        let balance = U256::try_from_be_slice(balance).ok_or_else(malformed)?;
        let (nonce, code_hash) = (u64::from_be_bytes(*nonce), B256::from(*code));
        Ok(Some(AccountInfo { balance, nonce, code_hash, code: None, ..AccountInfo::default() }))
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, Failed> {
        let code = self.get(&code_key(hash))?.ok_or_else(|| Failed("no code".to_owned()))?;
        Ok(Bytecode::new_legacy(code.into()))
    }

    fn storage_ref(&self, address: Address, slot: StorageKey) -> Result<StorageValue, Failed> {
        let value = self.get(&slot_key(address, slot))?.unwrap_or_default();
        StorageValue::try_from_be_slice(&value).ok_or_else(|| Failed("a slot".to_owned()))
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Failed> {
        Err(Failed("no block asks for hashes".to_owned()))
    }
}
