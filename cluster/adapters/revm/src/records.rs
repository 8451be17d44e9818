//! The records of a chain. Accounts, slots, codes and roots are those of the module for
//! go-ethereum, so each reads the other's ledgers.

use std::sync::Arc;

use alloy_rlp::{Decodable, Encodable, Header};
use bytes::{BufMut, Bytes, BytesMut};
use coppice_types::Stamp;
use revm::{
    primitives::{Address, B256, KECCAK_EMPTY, StorageKey, StorageValue, U256, b256, keccak256},
    state::AccountInfo,
};

use crate::Error;

/// The root before the first block. It is that of an empty trie of Ethereum.
pub const EMPTY_ROOT: B256 = b256!("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");

/// Kinds of records, behind the prefix.
const ACCOUNT: u8 = b'a';
const BLOCK: u8 = b'b';
const CODE: u8 = b'c';
const HEAD: u8 = b'h';
const SLOT: u8 = b's';
const ROOT: u8 = b'v';

/// Makes the keys of a chain's records.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    fn key(&self, kind: u8, parts: &[&[u8]]) -> Bytes {
        let mut key = BytesMut::with_capacity(self.prefix.len() + 1 + 2 * 32);
        key.put_slice(self.prefix.as_bytes());
        key.put_u8(kind);
        parts.iter().for_each(|part| key.put_slice(part));
        key.freeze()
    }

    /// The root of the parent of the newest block.
    pub(crate) fn head(&self) -> Bytes {
        self.key(HEAD, &[])
    }

    /// The version of a root, written by the block behind it.
    pub(crate) fn root(&self, root: B256) -> Bytes {
        self.key(ROOT, &[root.as_slice()])
    }

    /// An account, by the hash of its address.
    pub(crate) fn account(&self, account: B256) -> Bytes {
        self.key(ACCOUNT, &[account.as_slice()])
    }

    /// A slot of an account's storage.
    pub(crate) fn slot(&self, account: B256, slot: StorageKey) -> Bytes {
        let slot = keccak256(slot.to_be_bytes::<32>());
        self.key(SLOT, &[account.as_slice(), slot.as_slice()])
    }

    /// The range of all slots of an account: its beginning, and its end, which it does not contain.
    pub(crate) fn slots(&self, account: B256) -> (Bytes, Bytes) {
        let low = self.key(SLOT, &[account.as_slice()]);
        let high = self.key(SLOT, &[account.as_slice(), B256::repeat_byte(0xff).as_slice(), &[0]]);
        (low, high)
    }

    pub(crate) fn code(&self, hash: B256) -> Bytes {
        self.key(CODE, &[hash.as_slice()])
    }

    /// The hash of a block.
    pub(crate) fn block(&self, number: u64) -> Bytes {
        self.key(BLOCK, &[&number.to_be_bytes()])
    }

    /// Whether a key is that of an account.
    pub(crate) fn is_account(&self, key: &[u8]) -> bool {
        key.get(self.prefix.len()) == Some(&ACCOUNT)
    }
}

/// The hash by which the ledger knows an account.
pub(crate) fn hashed(address: Address) -> B256 {
    keccak256(address)
}

/// An account in the slim encoding of go-ethereum: a list of the nonce, the balance, the root of
/// the storage and the hash of the code. An empty storage and an empty code are empty strings.
/// There are no tries here, so all storages are empty by their root.
pub(crate) fn encode_account(info: &AccountInfo) -> Bytes {
    let balance = info.balance.to_be_bytes_trimmed_vec();
    let code: &[u8] = if info.code_hash == KECCAK_EMPTY { &[] } else { info.code_hash.as_slice() };
    let parts: [&dyn Encodable; 4] = [&info.nonce, &balance.as_slice(), &[0_u8; 0].as_slice(), &code];
    let payload_length = parts.iter().map(|part| part.length()).sum();
    let mut account = BytesMut::with_capacity(payload_length + 3);
    Header { list: true, payload_length }.encode(&mut account);
    parts.iter().for_each(|part| part.encode(&mut account));
    account.freeze()
}

/// Reads an account, without its code.
pub(crate) fn decode_account(value: &[u8]) -> Result<AccountInfo, Error> {
    let malformed = |_| Error::Malformed("an account");
    let mut rest = value;
    let header = Header::decode(&mut rest).map_err(malformed)?;
    if !header.list || header.payload_length != rest.len() {
        return Err(Error::Malformed("an account"));
    }
    let nonce = u64::decode(&mut rest).map_err(malformed)?;
    let mut part = || Header::decode_bytes(&mut rest, false).map_err(malformed);
    let (balance, storage, code) = (part()?, part()?, part()?);
    let balance = U256::try_from_be_slice(balance).ok_or(Error::Malformed("the balance of an account"))?;
    let code_hash = if code.is_empty() { Some(KECCAK_EMPTY) } else { B256::try_from(code).ok() };
    let code_hash = code_hash.ok_or(Error::Malformed("the code hash of an account"))?;
    if !rest.is_empty() || !matches!(storage.len(), 0 | 32) {
        return Err(Error::Malformed("an account"));
    }
    Ok(AccountInfo { balance, nonce, code_hash, code: None, ..AccountInfo::default() })
}

/// The value of a slot, without leading zeros; `None` for zero, which has no record.
pub(crate) fn encode_slot(value: StorageValue) -> Option<Bytes> {
    (!value.is_zero()).then(|| value.to_be_bytes_trimmed_vec().into())
}

pub(crate) fn decode_slot(value: Option<&Bytes>) -> Result<StorageValue, Error> {
    let value = value.map_or(Some(StorageValue::ZERO), |value| StorageValue::try_from_be_slice(value));
    value.ok_or(Error::Malformed("a slot"))
}

/// The value of the record of a root.
pub(crate) fn encode_stamp(at: Stamp) -> Bytes {
    [at.epoch.0.to_be_bytes(), at.version.0.to_be_bytes()].concat().into()
}

pub(crate) fn decode_stamp(value: &[u8]) -> Result<Stamp, Error> {
    let value: [u8; 16] = value.try_into().map_err(|_| Error::Malformed("the version of a root"))?;
    let both = u128::from_be_bytes(value);
    Ok(Stamp::new((both >> 64) as u64, both as u64))
}

#[cfg(test)]
mod tests {
    use revm::primitives::hex;
    use serde_json::Value;

    use super::*;

    /// The table that the module for go-ethereum makes its records by.
    const TABLE: &str = include_str!("../../geth/testdata/records.json");

    fn bytes(value: &Value) -> Vec<u8> {
        hex::decode(value.as_str().expect("a text")).expect("hex digits")
    }

    fn word(value: &Value) -> U256 {
        value.as_str().expect("a text").parse().expect("a number")
    }

    /// The members of a list, with the key and the value of each.
    fn members<'a>(table: &'a Value, list: &str) -> Vec<(&'a Value, Vec<u8>, Vec<u8>)> {
        let members = table[list].as_array().expect("a list");
        assert!(!members.is_empty(), "{list}");
        members.iter().map(|it| (it, bytes(&it["key"]), bytes(&it["value"]))).collect()
    }

    #[test]
    fn records_are_those_of_other_adapters() {
        let table: Value = serde_json::from_str(TABLE).expect("a table");
        let keys = Keys::new(table["prefix"].as_str().expect("a prefix"));
        for (it, key, value) in members(&table, "accounts") {
            let info = AccountInfo {
                nonce: word(&it["nonce"]).to(),
                balance: word(&it["balance"]),
                code_hash: keccak256(bytes(&it["code"])),
                ..AccountInfo::default()
            };
            let account = hashed(Address::from_slice(&bytes(&it["address"])));
            assert_eq!((&keys.account(account)[..], &encode_account(&info)[..]), (&key[..], &value[..]), "{it}");
            assert_eq!(decode_account(&value).expect("an account"), info, "{it}");
            assert!(keys.is_account(&key));
        }
        for (it, key, value) in members(&table, "slots") {
            let account = hashed(Address::from_slice(&bytes(&it["address"])));
            let encoded = encode_slot(word(&it["holds"]));
            assert_eq!(
                (&keys.slot(account, word(&it["slot"]))[..], encoded.as_deref()),
                (&key[..], Some(&value[..]).filter(|it| !it.is_empty())),
                "{it}"
            );
            assert_eq!(decode_slot(encoded.as_ref()).expect("a slot"), word(&it["holds"]), "{it}");
            let (low, high) = keys.slots(account);
            assert!(low <= key && key < high && !keys.is_account(&key), "{it}");
        }
        for (it, key, value) in members(&table, "codes") {
            assert_eq!((&keys.code(keccak256(&value))[..], bytes(&it["code"])), (&key[..], value), "{it}");
        }
        for (it, key, value) in members(&table, "roots") {
            let at = Stamp::new(it["epoch"].as_u64().expect("a number"), it["version"].as_u64().expect("a number"));
            let root = B256::from_slice(&bytes(&it["root"]));
            assert_eq!((&keys.root(root)[..], &encode_stamp(at)[..]), (&key[..], &value[..]), "{it}");
            assert_eq!(decode_stamp(&value).expect("a version"), at);
        }
        for (it, key, value) in members(&table, "heads") {
            assert_eq!((&keys.head()[..], value), (&key[..], bytes(&it["parent"])), "{it}");
        }
    }

    #[test]
    fn other_bytes_are_no_records() {
        let good = encode_account(&AccountInfo { balance: U256::from(300), ..AccountInfo::default() });
        for cut in 0..good.len() {
            assert!(decode_account(&good[..cut]).is_err(), "{cut}");
        }
        for bad in [
            "80",
            "c0",
            "c380 80 80",
            "c580 80 80 80 80",
            "c4 00 80 80 80",
            "c5 80 80 80 81 05",
            "c480808080 80",
            "c5 80 80 80 82 0102",
        ] {
            let bad = hex::decode(bad.replace(' ', "")).expect("hex digits");
            assert!(decode_account(&bad).is_err(), "{bad:x?}");
        }
        assert!(decode_slot(Some(&vec![1; 33].into())).is_err());
        assert!(decode_stamp(&[0; 15]).is_err() && decode_stamp(&[0; 17]).is_err());
        // The state that a node of go-ethereum has written names the root of each storage.
        let with_storage = [&hex!("e4 80 80 a0")[..], &[7; 32], &hex!("80")].concat();
        assert_eq!(
            decode_account(&with_storage).expect("an account"),
            AccountInfo { code: None, ..AccountInfo::default() }
        );
    }
}
