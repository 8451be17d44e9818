//! Damaged tokens: each is refused, or states the same as the original token.

use coppice_timestamp::{Authority, Error, Nonce, Stamped, Token, verify};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::bench::{DATA, bench, imprint, request};

/// A response, and its statement.
struct Case {
    response: Vec<u8>,
    nonce: Nonce,
    authority: Authority,
    stamped: Stamped,
}

impl Case {
    fn new(section: &str, signer: &str, root: &str, with_certificates: bool) -> Self {
        let asked = if with_certificates { request().with_certificates() } else { request() };
        let response = bench().answer(section, &asked);
        let nonce = asked.nonce().clone();
        // Without certificates in the authority, the verdict depends on those in the token.
        let root_alone = Authority::new(&bench().read(&format!("{root}.pem"))).expect("a root");
        let authority = if with_certificates { root_alone } else { bench().authority(root, signer) };
        let stamped = judge(&response, &authority, &nonce).expect(section);
        Self { response, nonce, authority, stamped }
    }

    /// Whether changed bytes are refused. Panics if they say anything else than before.
    fn is_refused(&self, bytes: &[u8]) -> bool {
        match judge(bytes, &self.authority, &self.nonce) {
            Err(error) => {
                assert!(error.to_string().len() < 4096);
                true
            }
            Ok(stamped) => {
                assert_eq!(stamped, self.stamped);
                false
            }
        }
    }
}

fn judge(bytes: &[u8], authority: &Authority, nonce: &Nonce) -> Result<Stamped, Error> {
    verify(&Token::parse(bytes)?, authority, &imprint(DATA), Some(nonce))
}

fn flip_every_bit(case: &Case) {
    let mut taken = 0;
    for at in 0..case.response.len() * 8 {
        let mut bytes = case.response.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        taken += usize::from(!case.is_refused(&bytes));
    }
    // Copies of certificates, and the names and versions that nothing depends on, may change.
    assert!(taken * 2 < case.response.len() * 8, "{taken} flipped bits changed nothing");
}

#[test]
fn every_flipped_bit_of_a_bare_token_is_refused_or_changes_nothing() {
    flip_every_bit(&Case::new("millis", "plain", "first", false));
}

#[test]
fn every_flipped_bit_of_a_token_with_certificates_is_refused_or_changes_nothing() {
    flip_every_bit(&Case::new("whole", "plain", "first", true));
}

#[test]
fn every_flipped_bit_of_a_token_by_rsa_is_refused_or_changes_nothing() {
    flip_every_bit(&Case::new("rsa", "rsa", "second", false));
}

#[test]
fn every_truncation_and_every_longer_token_is_refused() {
    for case in [Case::new("micros", "plain", "first", true), Case::new("rsa", "rsa", "second", false)] {
        let token = Token::parse(&case.response).expect("a token").as_der().to_vec();
        for bytes in [&case.response, &token] {
            for length in 0..bytes.len() {
                assert!(case.is_refused(&bytes[..length]), "cut to {length} bytes");
                let rest = &bytes[length..];
                assert!(rest == token || rest == case.response || case.is_refused(rest), "cut {length} bytes off");
            }
            assert!(case.is_refused(&[&bytes[..], &[0]].concat()));
            assert!(case.is_refused(&[&bytes[..], &bytes[..]].concat()));
            assert!(!case.is_refused(bytes));
        }
    }
}

#[test]
fn random_bytes_never_pass_and_never_panic() {
    let case = Case::new("millis", "plain", "first", true);
    let mut runner = TestRunner::new(ProptestConfig { cases: 2000, ..ProptestConfig::default() });
    let length = case.response.len();
    let changes = prop::collection::vec((0..length, 0..length, any::<u8>(), 0..4usize), 1..5);
    let outcome = runner.run(&(changes, prop::collection::vec(any::<u8>(), 0..300)), |(changes, noise)| {
        let mut bytes = case.response.clone();
        for (at, other, byte, change) in changes {
            let (at, other) = (at % bytes.len(), other % bytes.len());
            match change {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at.min(other)..at.max(other))),
                2 => bytes.insert(at, byte),
                _ => drop(bytes.splice(at..at, noise.iter().copied())),
            }
            bytes.push(byte);
            bytes.pop();
        }
        case.is_refused(&bytes);
        prop_assert!(Token::parse(&noise).is_err());
        let framed = [&[0x30, 0x82, 0, 0][..], &noise].concat();
        prop_assert!(Token::parse(&framed).is_err());
        prop_assert!(Authority::new(&noise).is_err());
        let _ = Authority::new(&bytes);
        let _ = case.authority.clone().with_certificates(&bytes);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
