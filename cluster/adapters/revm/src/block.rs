//! A block that is run.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use coppice_client::state::Writes;
use revm::{
    database_interface::{Database, DatabaseCommit},
    primitives::{Address, AddressMap, B256, KECCAK_EMPTY, StorageKey, StorageValue},
    state::{Account, AccountInfo, Bytecode},
};

use crate::{
    Error, View,
    records::{self, Keys, hashed},
    view,
};

/// The state in which a transaction of a block runs: that of the parent, with what the transactions
/// before it have changed.
#[derive(Clone, Debug)]
pub struct Block {
    view: View,
    parent: B256,
    /// What was read of the parent's state.
    read: HashMap<Bytes, Option<Bytes>>,
    records: Writes,
    /// Accounts whose storage in the parent's state is gone, by the hash of their address.
    emptied: HashSet<B256>,
    /// Codes that were read or created.
    codes: HashMap<B256, Bytecode>,
}

impl Block {
    pub(crate) fn new(view: View, parent: B256) -> Self {
        Self {
            view,
            parent,
            read: HashMap::new(),
            records: Writes::new(),
            emptied: HashSet::new(),
            codes: HashMap::new(),
        }
    }

    /// The root of the state on which the block runs.
    #[must_use]
    pub fn parent(&self) -> B256 {
        self.parent
    }

    /// The state on which the block runs, for instance to read ahead of its transactions.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    fn keys(&self) -> &Keys {
        self.view.keys()
    }

    /// Writes an account and its code, without a transaction. Its storage stays. Unlike an account
    /// that a transaction touches, it stays in the state if it is empty.
    pub fn insert_account(&mut self, address: Address, info: &AccountInfo) {
        self.take_code(info);
        self.records.insert(self.keys().account(hashed(address)), Some(records::encode_account(info)));
    }

    /// Writes a slot of an account that exists, without a transaction.
    pub fn insert_slot(&mut self, address: Address, slot: StorageKey, value: StorageValue) {
        self.records.insert(self.keys().slot(hashed(address), slot), records::encode_slot(value));
    }

    /// Writes the hash of a block, for the instruction `BLOCKHASH`. A block writes that of its
    /// parent, since its own is not known before its root is.
    pub fn insert_block_hash(&mut self, number: u64, hash: B256) {
        self.records.insert(self.keys().block(number), Some(Bytes::copy_from_slice(hash.as_slice())));
    }

    fn take_code(&mut self, info: &AccountInfo) {
        if let Some(code) = info.code.as_ref().filter(|_| info.code_hash != KECCAK_EMPTY) {
            self.codes.entry(info.code_hash).or_insert_with(|| code.clone());
        }
    }

    /// Reads a record of the parent's state.
    fn read(&mut self, key: Bytes) -> Result<Option<Bytes>, Error> {
        if let Some(value) = self.read.get(&key) {
            return Ok(value.clone());
        }
        let value = self.view.value(&key)?;
        self.read.insert(key, value.clone());
        Ok(value)
    }

    fn value(&mut self, key: Bytes) -> Result<Option<Bytes>, Error> {
        match self.records.get(&key) {
            Some(value) => Ok(value.clone()),
            None => self.read(key),
        }
    }

    /// Drops the storage of an account.
    fn empty(&mut self, account: B256) {
        let (low, high) = self.keys().slots(account);
        self.records.extract_if(low..high, |_, _| true).for_each(drop);
        self.emptied.insert(account);
    }

    fn take(&mut self, address: Address, account: &Account) {
        let hash = hashed(address);
        // The storage of an account that is created or destroyed begins anew. One that a later
        // transaction has loaded again after its end is no longer destroyed locally.
        let (destroyed, gone) = (account.is_selfdestructed(), account.is_selfdestructed_locally());
        let deleted = gone || account.is_empty();
        if destroyed || deleted || account.is_created() {
            self.empty(hash);
        }
        let key = self.keys().account(hash);
        if deleted {
            self.records.insert(key, None);
            return;
        }
        self.take_code(&account.info);
        self.records.insert(key, Some(records::encode_account(&account.info)));
        let begins = self.emptied.contains(&hash);
        for (slot, value) in &account.storage {
            // After several transactions, a slot may have changed although it says otherwise.
            let (key, value) = (self.keys().slot(hash, *slot), records::encode_slot(value.present_value));
            if begins && value.is_none() {
                self.records.remove(&key);
            } else {
                self.records.insert(key, value);
            }
        }
    }

    /// Reads what the block writes. Without that, it does not know which of its records change
    /// nothing.
    pub(crate) fn recall(&mut self) -> Result<(), Error> {
        let keys: Vec<Bytes> = self.records.keys().cloned().collect();
        self.view.prefetch_keys(keys.iter().cloned())?;
        keys.into_iter().try_for_each(|key| self.read(key).map(drop))
    }

    /// The ranges of the slots that the ledger may have of accounts whose storage is gone. An
    /// account that was not in the parent's state had no storage.
    pub(crate) fn emptied(&self) -> Result<Vec<(Bytes, Bytes)>, Error> {
        let mut ranges = Vec::new();
        for account in &self.emptied {
            let key = self.keys().account(*account);
            let before = self.read.get(&key).cloned().map_or_else(|| self.view.value(&key), Ok)?;
            if before.is_some() {
                ranges.push(self.keys().slots(*account));
            }
        }
        Ok(ranges)
    }

    /// What the block changes in the ledger. `gone` are keys of slots of accounts whose storage is
    /// gone.
    pub(crate) fn changes(&self, gone: Vec<Bytes>) -> Result<Writes, Error> {
        let mut changes = self.records.clone();
        for key in gone {
            changes.entry(key).or_insert(None);
        }
        for (key, value) in &self.records {
            let Some(value) = value.as_ref().filter(|_| self.keys().is_account(key)) else { continue };
            let hash = records::decode_account(value)?.code_hash;
            let before = self.read.get(key).and_then(Option::as_ref);
            let before = before.map(|value| records::decode_account(value)).transpose()?;
            if let Some(code) = self.codes.get(&hash).filter(|_| before.is_none_or(|it| it.code_hash != hash)) {
                changes.insert(self.keys().code(hash), Some(code.original_bytes().0));
            }
        }
        changes.retain(|key, value| self.read.get(key) != Some(value));
        Ok(changes)
    }
}

impl Database for Block {
    type Error = Error;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
        let key = self.keys().account(hashed(address));
        self.value(key)?.map(|value| records::decode_account(&value)).transpose()
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, Error> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        if let Some(code) = self.codes.get(&hash) {
            return Ok(code.clone());
        }
        let code = view::code(hash, self.view.value(&self.keys().code(hash))?)?;
        self.codes.insert(hash, code.clone());
        Ok(code)
    }

    fn storage(&mut self, address: Address, slot: StorageKey) -> Result<StorageValue, Error> {
        let account = hashed(address);
        let key = self.keys().slot(account, slot);
        if !self.records.contains_key(&key) && self.emptied.contains(&account) {
            return Ok(StorageValue::ZERO);
        }
        records::decode_slot(self.value(key)?.as_ref())
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Error> {
        let key = self.keys().block(number);
        view::block_hash(number, self.value(key)?)
    }
}

impl DatabaseCommit for Block {
    fn commit(&mut self, changes: AddressMap<Account>) {
        for (address, account) in &changes {
            if account.is_touched() {
                self.take(*address, account);
            }
        }
    }
}
