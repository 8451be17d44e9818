//! The state of a chain as Ethereum sees it: the root of its trie, over the state in memory and
//! over that in a ledger, which is read by other code than the adapter's.

use std::collections::BTreeMap;

use alloy_rlp::{Encodable, RlpEncodable};
use alloy_trie::{TrieAccount, root};
use bytes::Bytes;
use coppice_client::Client;
use coppice_proto::v1;
use revm::{
    Database,
    database::State,
    primitives::{B256, KECCAK_EMPTY, U256, keccak256},
    state::AccountInfo,
};
use tokio::runtime::Runtime;

use super::Ledger;

/// The root of Ethereum's trie, from accounts and slots by their hashes.
fn trie_root(
    accounts: impl IntoIterator<Item = (B256, AccountInfo)>,
    slots: &BTreeMap<B256, Vec<(B256, U256)>>,
) -> B256 {
    root::state_root_unsorted(accounts.into_iter().map(|(account, info)| {
        let slots = slots.get(&account).into_iter().flatten().copied();
        let storage_root = root::storage_root_unsorted(slots);
        (account, TrieAccount { nonce: info.nonce, balance: info.balance, storage_root, code_hash: info.code_hash })
    }))
}

/// The same root over what revm holds in memory.
pub fn root_in_memory<D: Database>(state: &State<D>) -> B256 {
    let mut slots = BTreeMap::<B256, Vec<(B256, U256)>>::new();
    let mut accounts = Vec::new();
    for (address, account) in state.cache.trie_account() {
        let storage = account.storage.iter().filter(|(_, value)| !value.is_zero());
        let storage = storage.map(|(slot, value)| (keccak256(slot.to_be_bytes::<32>()), *value));
        slots.insert(keccak256(address), storage.collect());
        accounts.push((keccak256(address), account.info.clone()));
    }
    trie_root(accounts, &slots)
}

/// A client beside the chain's.
pub struct Reader {
    pub runtime: Runtime,
    pub client: Client,
}

impl Reader {
    pub fn new(ledger: &Ledger) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(async { Client::new(ledger.client_at(&ledger.endpoint)) });
        Self { runtime, client: client.expect("a client") }
    }

    pub fn head(&self) -> v1::Stamp {
        self.runtime.block_on(self.client.head()).expect("a head").stamp.expect("a version")
    }

    /// Rolls the ledger back, unless it is there already.
    pub fn roll_back(&self, to: u64) {
        let (reason, principal) = ("a test".to_owned(), "tests".to_owned());
        let request = v1::RollbackRequest { to: Some(to), reason, principal, expected_head: None };
        if self.head().version > to {
            self.runtime.block_on(self.client.rollback(request)).expect("a rollback");
        }
    }

    fn range(&self, kind: u8) -> Vec<(Bytes, Bytes)> {
        let [low, high] = [kind, kind + 1].map(|kind| Bytes::from([b"eth/", &[kind][..]].concat()));
        let request = v1::RangeRequest { low, high: Some(high), ..Default::default() };
        let (records, _) = self.runtime.block_on(self.client.range_all(request)).expect("a proven range");
        records.into_iter().map(|record| (record.key.slice(5..), record.value)).collect()
    }

    /// The root of Ethereum's trie over the newest state of the ledger. Its records are read by
    /// other code than the adapter's.
    pub fn root(&self) -> B256 {
        let mut slots = BTreeMap::<B256, Vec<(B256, U256)>>::new();
        for (key, value) in self.range(b's') {
            let slot = (B256::from_slice(&key[32..]), U256::from_be_slice(&value));
            slots.entry(B256::from_slice(&key[..32])).or_default().push(slot);
        }
        let accounts: Vec<_> =
            self.range(b'a').into_iter().map(|(key, value)| (B256::from_slice(&key), slim(&value))).collect();
        let homeless = slots.keys().find(|account| !accounts.iter().any(|(it, _)| it == *account));
        assert_eq!(homeless, None, "slots of an account that does not exist");
        trie_root(accounts, &slots)
    }
}

/// An account in the slim encoding, taken apart by another library than the adapter's own code.
fn slim(value: &[u8]) -> AccountInfo {
    #[derive(RlpEncodable)]
    struct Slim {
        nonce: u64,
        balance: U256,
        storage: Bytes,
        code: Bytes,
    }
    let mut rest = value;
    let header = alloy_rlp::Header::decode(&mut rest).expect("a list");
    assert!(header.list);
    let parts: Vec<&[u8]> = std::iter::from_fn(|| {
        (!rest.is_empty()).then(|| alloy_rlp::Header::decode_bytes(&mut rest, false).expect("a string"))
    })
    .collect();
    let [nonce, balance, storage, code] = parts[..] else { panic!("{} parts", parts.len()) };
    let again = Slim {
        nonce: U256::from_be_slice(nonce).to(),
        balance: U256::from_be_slice(balance),
        storage: Bytes::copy_from_slice(storage),
        code: Bytes::copy_from_slice(code),
    };
    let mut encoded = Vec::new();
    again.encode(&mut encoded);
    assert_eq!((&encoded[..], storage.len()), (value, 0), "it is encoded in one way");
    let code_hash = if code.is_empty() { KECCAK_EMPTY } else { B256::from_slice(code) };
    AccountInfo { nonce: again.nonce, balance: again.balance, code_hash, ..Default::default() }
}
