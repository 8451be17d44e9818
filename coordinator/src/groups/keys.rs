//! The signing keys that this coordinator holds, and the keys that the ledger has had, in order.
//!
//! Invariant: every checkpoint is signed by the key in force at its size, and by no other. A caller
//! takes the size from a state of the root group that the ring has seen before. So the ring knows
//! every key change below that size.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::Reason;
use coppice_verify::{
    header::Body,
    note::{SignerKey, VerifierKey},
};
use tonic::Status;

use super::wire;
use crate::{lock::held, plan::Refusal};

/// The advice if a key is missing.
const HINT: &str = "name its file as signing_key_file or next_signing_key_file of this coordinator, and start it again";

/// An Ed25519 key.
pub type PublicKey = [u8; 32];

/// The coordinator's own keys, and the ledger's.
#[derive(Debug)]
pub struct KeyRing {
    /// One or two keys, all of the same name.
    own: Vec<SignerKey>,
    known: Mutex<Known>,
    /// Key headers by their sequence. They never change.
    headers: Mutex<BTreeMap<u64, Bytes>>,
}

/// The ledger's keys, as far as they were seen.
#[derive(Debug, Default)]
struct Known {
    /// The key in the genesis header.
    first: Option<PublicKey>,
    /// The sequence of each key header, and its key.
    turns: Vec<(u64, PublicKey)>,
}

impl Known {
    fn in_force(&self, size: u64) -> Option<PublicKey> {
        let turns = self.turns.partition_point(|(sequence, _)| *sequence < size);
        turns.checked_sub(1).map_or(self.first, |last| Some(self.turns[last].1))
    }
}

impl KeyRing {
    /// A ring of these keys, which have the same name.
    pub fn new(key: SignerKey, next: Option<SignerKey>) -> Self {
        let own = [Some(key), next].into_iter().flatten().collect();
        Self { own, known: Mutex::default(), headers: Mutex::default() }
    }

    /// The name of all keys, which is the log's origin.
    pub fn origin(&self) -> &str {
        self.own[0].name()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        held(&self.known)
    }

    /// Learns the ledger's keys from a state of the root group.
    ///
    /// # Errors
    /// `INTERNAL` if the state is malformed.
    pub fn learn(&self, view: &v1::RootView) -> Result<(), Status> {
        let mut known = self.known();
        if view.genesis.is_empty() || known.first.is_some() && view.keys.len() <= known.turns.len() {
            return Ok(());
        }
        let turn = |turn: &v1::KeyTurn| Some((turn.sequence, PublicKey::try_from(turn.public_key.as_ref()).ok()?));
        let turns =
            view.keys.iter().map(turn).collect::<Option<Vec<_>>>().ok_or_else(|| wire::broken("list of keys"))?;
        let Body::Genesis(genesis) = wire::header_in(&view.genesis)?.body else {
            return Err(wire::broken("genesis header"));
        };
        *known = Known { first: Some(genesis.public_key), turns };
        Ok(())
    }

    /// Notes that the header with this sequence changed the ledger's key.
    pub fn turned(&self, sequence: u64, public_key: PublicKey) {
        let mut known = self.known();
        if known.turns.last().is_none_or(|(last, _)| *last < sequence) {
            known.turns.push((sequence, public_key));
        }
    }

    /// The sequences of the key changes below a size.
    pub fn changes_below(&self, size: u64) -> Vec<u64> {
        self.known().turns.iter().map(|(sequence, _)| *sequence).take_while(|sequence| *sequence < size).collect()
    }

    /// How often the key was changed.
    pub fn changes(&self) -> usize {
        self.known().turns.len()
    }

    /// The key that signs checkpoints of this size.
    ///
    /// # Errors
    /// `UNAVAILABLE` if this coordinator does not hold it. The message says what to do.
    pub fn signer(&self, size: u64) -> Result<&SignerKey, Refusal> {
        let unknown = || Refusal::new(Reason::Unavailable, "the ledger's key is not known yet".to_owned());
        let public_key = self.known().in_force(size).ok_or_else(unknown)?;
        self.own(&public_key).ok_or_else(|| {
            let vkey = self.vkey(&public_key);
            Refusal::new(Reason::Unavailable, format!("the ledger's key {vkey} is not here: {HINT}"))
        })
    }

    /// Checks that this coordinator holds the newest key, as far as the ledger's keys are known.
    ///
    /// # Errors
    /// Those of [`KeyRing::signer`].
    pub fn check(&self) -> Result<(), Refusal> {
        if self.known().first.is_none() {
            return Ok(());
        }
        self.signer(u64::MAX).map(drop)
    }

    /// This coordinator's key with this public key, if it holds one.
    pub fn own(&self, public_key: &PublicKey) -> Option<&SignerKey> {
        self.own.iter().find(|key| key.verifier().public_key() == *public_key)
    }

    /// The ledger's newest key, as text.
    pub fn current(&self) -> String {
        let current = self.known().in_force(u64::MAX);
        current.map_or_else(|| self.own[0].verifier().to_string(), |key| self.vkey(&key))
    }

    fn vkey(&self, public_key: &PublicKey) -> String {
        VerifierKey::new(self.origin(), public_key).map_or_else(|_| "(malformed)".to_owned(), |key| key.to_string())
    }

    /// The remembered header of a key change.
    pub fn header(&self, sequence: u64) -> Option<Bytes> {
        held(&self.headers).get(&sequence).cloned()
    }

    /// Remembers the header of a key change.
    pub fn keep_header(&self, sequence: u64, header: Bytes) {
        held(&self.headers).insert(sequence, header);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use coppice_types::{ClusterId, Params};
    use coppice_verify::{
        header::{Genesis, Header},
        shard_map::ShardMap,
    };

    use super::*;

    fn key(seed: u8) -> SignerKey {
        SignerKey::from_seed("ledger.example/x", &[seed; 32]).expect("a name")
    }

    fn public(seed: u8) -> PublicKey {
        key(seed).verifier().public_key()
    }

    fn view(keys: &[(u64, u8)]) -> v1::RootView {
        let shard_map = ShardMap::from_splits(&[]).expect("one shard");
        let genesis =
            Genesis { prefix: "ledger.example".into(), public_key: public(1), params: Params::default(), shard_map };
        let turn = |&(sequence, seed)| v1::KeyTurn { sequence, public_key: Bytes::copy_from_slice(&public(seed)) };
        v1::RootView {
            genesis: Header::genesis(ClusterId([1; 16]), 1, genesis).encode().into(),
            keys: keys.iter().map(turn).collect(),
            ..v1::RootView::default()
        }
    }

    /// A ring that knows the genesis key, and has it.
    pub(in crate::groups) fn ring() -> KeyRing {
        let ring = KeyRing::new(key(1), None);
        ring.learn(&view(&[])).expect("a view");
        ring
    }

    fn signs(ring: &KeyRing, size: u64) -> Option<PublicKey> {
        ring.signer(size).ok().map(|key| key.verifier().public_key())
    }

    #[test]
    fn the_key_in_force_at_a_size_signs_it() {
        let ring = KeyRing::new(key(1), Some(key(2)));
        assert!(ring.signer(1).is_err() && ring.check().is_ok(), "nothing is known yet");
        ring.learn(&view(&[])).expect("a view");
        assert_eq!((signs(&ring, 1), signs(&ring, 99)), (Some(public(1)), Some(public(1))));
        ring.turned(10, public(2));
        assert_eq!((signs(&ring, 10), signs(&ring, 11)), (Some(public(1)), Some(public(2))));
        ring.learn(&view(&[])).expect("an earlier view");
        assert_eq!(signs(&ring, 11), Some(public(2)), "what is known is not forgotten");
        assert_eq!((ring.changes_below(10), ring.changes_below(11)), (vec![], vec![10]));
    }

    #[test]
    fn without_the_current_key_nothing_is_signed_and_the_message_says_what_to_do() {
        let ring = KeyRing::new(key(1), None);
        ring.learn(&view(&[(10, 2)])).expect("a view");
        assert_eq!(signs(&ring, 10), Some(public(1)));
        let refusal = ring.check().expect_err("the current key is not here");
        assert_eq!(refusal.reason, Reason::Unavailable);
        for part in [key(2).verifier().to_string().as_str(), "next_signing_key_file"] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
        assert_eq!(ring.current(), key(2).verifier().to_string());
        let new = KeyRing::new(key(2), None);
        new.learn(&view(&[(10, 2)])).expect("a view");
        assert!(new.check().is_ok() && new.signer(10).is_err());
    }
}
