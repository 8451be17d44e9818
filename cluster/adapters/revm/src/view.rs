//! Reads of one state.

use std::sync::Arc;

use bytes::Bytes;
use coppice_client::state;
use coppice_types::Stamp;
use revm::{
    context_interface::{Transaction, transaction::AccessListItemTr},
    database_interface::DatabaseRef,
    primitives::{Address, AddressMap, B256, KECCAK_EMPTY, StorageKey, StorageValue, keccak256},
    state::{AccountInfo, Bytecode},
};

use crate::{
    Error,
    driver::Driver,
    records::{self, Keys, hashed},
};

/// Accounts, and slots of each, that will be read.
pub type Accesses = AddressMap<Vec<StorageKey>>;

/// The accounts and slots that transactions name: senders, receivers, and access lists.
pub fn accesses_of<'a, T: Transaction + 'a>(transactions: impl IntoIterator<Item = &'a T>) -> Accesses {
    let mut accesses = Accesses::default();
    for transaction in transactions {
        accesses.entry(transaction.caller()).or_default();
        if let Some(to) = transaction.kind().to() {
            accesses.entry(*to).or_default();
        }
        for item in transaction.access_list().into_iter().flatten() {
            let slots = item.storage_slots().map(|slot| StorageKey::from_be_bytes(slot.0));
            accesses.entry(*item.address()).or_default().extend(slots);
        }
    }
    accesses
}

/// The state of one root. Clones are the same view, and any thread may read it.
#[derive(Clone, Debug)]
pub struct View {
    driver: Arc<Driver>,
    keys: Keys,
    /// `None` for the state before the first block.
    view: Option<state::View>,
}

impl View {
    pub(crate) fn new(driver: Arc<Driver>, keys: Keys, view: Option<state::View>) -> Self {
        Self { driver, keys, view }
    }

    /// The version of the ledger that the view reads; `None` before the first block.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        self.view.as_ref().map(state::View::stamp)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Reads a record. The cache bounds the time.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let Some(view) = &self.view else { return Ok(None) };
        Ok(self.driver.run(view.get(key))?)
    }

    pub(crate) fn prefetch_keys(&self, keys: impl IntoIterator<Item = Bytes>) -> Result<(), Error> {
        let Some(view) = &self.view else { return Ok(()) };
        Ok(self.driver.run(view.prefetch(keys))?)
    }

    /// Reads accounts and slots into the cache, many at one time, and then the codes of these
    /// accounts.
    ///
    /// # Errors
    /// The first error of a read.
    pub fn prefetch(&self, accesses: &Accesses) -> Result<(), Error> {
        let accounts: Vec<B256> = accesses.keys().map(|address| hashed(*address)).collect();
        let slots = accounts.iter().zip(accesses.values());
        let slots = slots.flat_map(|(account, slots)| slots.iter().map(|slot| self.keys.slot(*account, *slot)));
        self.prefetch_keys(accounts.iter().map(|account| self.keys.account(*account)).chain(slots))?;
        let mut codes = Vec::new();
        for account in accounts {
            let info = self.account(account)?.unwrap_or_default();
            if info.code_hash != KECCAK_EMPTY {
                codes.push(self.keys.code(info.code_hash));
            }
        }
        self.prefetch_keys(codes)
    }

    fn account(&self, account: B256) -> Result<Option<AccountInfo>, Error> {
        self.value(&self.keys.account(account))?.map(|value| records::decode_account(&value)).transpose()
    }
}

/// Reads a code that must be there.
pub(crate) fn code(hash: B256, value: Option<Bytes>) -> Result<Bytecode, Error> {
    let code = value.filter(|code| keccak256(code) == hash).ok_or(Error::Malformed("the code of an account"))?;
    // A code that only looks like a delegation runs as the code that it is.
    let delegation = Bytecode::new_raw_checked(code.clone().into());
    Ok(delegation.unwrap_or_else(|_| Bytecode::new_legacy(code.into())))
}

/// Reads the hash of a block, which must be there.
pub(crate) fn block_hash(number: u64, value: Option<Bytes>) -> Result<B256, Error> {
    let value = value.ok_or(Error::UnknownBlock(number))?;
    B256::try_from(&value[..]).map_err(|_| Error::Malformed("the hash of a block"))
}

impl DatabaseRef for View {
    type Error = Error;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Error> {
        self.account(hashed(address))
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, Error> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        code(hash, self.value(&self.keys.code(hash))?)
    }

    fn storage_ref(&self, address: Address, slot: StorageKey) -> Result<StorageValue, Error> {
        records::decode_slot(self.value(&self.keys.slot(hashed(address), slot))?.as_ref())
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, Error> {
        block_hash(number, self.value(&self.keys.block(number))?)
    }
}
