//! A witness that cosigns by ML-DSA-44. The product has none: it verifies such lines alone.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{TYPE_MLDSA44, mldsa44_message},
    hash::key_id,
};
use ml_dsa::{KeyExport, KeyInit, Keypair, MlDsa44, SigningKey};

pub struct MlDsaWitness {
    pub name: &'static str,
    signer: SigningKey<MlDsa44>,
}

impl MlDsaWitness {
    pub fn new(name: &'static str, seed: u8) -> Self {
        Self { name, signer: SigningKey::new_from_slice(&[seed; 32]).expect("a seed has 32 bytes") }
    }

    fn key(&self) -> Vec<u8> {
        self.signer.verifying_key().to_bytes().to_vec()
    }

    fn id(&self) -> [u8; 4] {
        key_id(self.name, TYPE_MLDSA44, &self.key())
    }

    pub fn vkey(&self) -> String {
        let key = [&[TYPE_MLDSA44][..], &self.key()].concat();
        let id = u32::from_be_bytes(self.id());
        format!("{}+{id:08x}+{}", self.name, STANDARD.encode(key))
    }

    /// The signature of a message under a context, which is empty in cosignatures.
    pub fn sign(&self, message: &[u8], context: &[u8]) -> Vec<u8> {
        let signature = self.signer.expanded_key().sign_deterministic(message, context);
        signature.expect("the context is short").encode().to_vec()
    }

    /// A line of this key with this time and any signature.
    pub fn line(&self, time: u64, signature: &[u8]) -> String {
        self.line_of(self.id(), time, signature)
    }

    /// A line under another key id.
    pub fn line_of(&self, id: [u8; 4], time: u64, signature: &[u8]) -> String {
        let payload = [&id[..], &time.to_be_bytes(), signature].concat();
        format!("\u{2014} {} {}", self.name, STANDARD.encode(payload))
    }

    pub fn cosign(&self, checkpoint: &Checkpoint, time: u64) -> String {
        let message = mldsa44_message(self.name, time, checkpoint).expect("the names are short");
        self.line(time, &self.sign(&message, b""))
    }
}
