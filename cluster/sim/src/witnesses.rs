//! Simulated witnesses of the root log: sound, slow, lying and dead ones. Every coordinator asks
//! all of them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_coordinator::{Post, Witness};
use coppice_env::{Rng, SimRng};
use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{Cosigner, Request, WitnessKey},
    merkle,
    note::VerifierKey,
};
use tokio::time::sleep;
use tonic::codegen::http::StatusCode;

use crate::{
    life::Life,
    net::Net,
    shape::{self, Habit, Shape},
};

/// Status and body of a witness's answer.
type Answer = (StatusCode, Vec<u8>);

/// The witnesses of a run. Clones share them.
#[derive(Clone, Debug)]
pub struct Witnesses(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    net: Net,
    log: [VerifierKey; 2],
    members: Vec<Member>,
    rng: Mutex<SimRng>,
}

struct Member {
    signer: Cosigner,
    habit: Habit,
    /// The checkpoint that it cosigned last.
    last: Mutex<Option<Checkpoint>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("habit", &self.habit).finish_non_exhaustive()
    }
}

fn name(index: usize) -> String {
    format!("witness-{index}")
}

fn signer(index: usize) -> Cosigner {
    let seed = [u8::try_from(index).expect("witnesses are few") + 40; 32];
    Cosigner::from_seed(&name(index), &seed).expect("it is a name")
}

/// The keys of all witnesses of a shape.
#[must_use]
pub fn keys(shape: &Shape) -> Vec<WitnessKey> {
    (0..shape.witnesses.len()).map(|index| signer(index).verifier().clone().into()).collect()
}

impl Witnesses {
    /// The witnesses of a shape, possibly none.
    #[must_use]
    pub fn new(shape: &Shape, net: Net) -> Self {
        let member =
            |(index, habit): (usize, &Habit)| Member { signer: signer(index), habit: *habit, last: Mutex::default() };
        let members = shape.witnesses.iter().enumerate().map(member).collect();
        let log = [shape::signing_key(), shape::next_signing_key()].map(|key| key.verifier().clone());
        Self(Arc::new(Inner { net, log, members, rng: Mutex::new(SimRng::new(shape.seed ^ 0x3173)) }))
    }

    /// The witnesses as coordinators are configured with them.
    #[must_use]
    pub fn list(&self) -> Vec<Witness> {
        let one = |(index, member): (usize, &Member)| Witness {
            url: name(index),
            key: member.signer.verifier().clone().into(),
        };
        self.0.members.iter().enumerate().map(one).collect()
    }

    /// A process's link to the witnesses.
    #[must_use]
    pub fn post(&self, life: &Life) -> Post {
        let (inner, life) = (self.0.clone(), life.clone());
        Arc::new(move |url, body| {
            let (inner, life) = (inner.clone(), life.clone());
            Box::pin(async move {
                let lost = || Err("the connection broke".to_owned());
                if !inner.net.errand(&life, &format!("> {url}")).await {
                    return lost();
                }
                let index = (0..inner.members.len()).find(|index| url.starts_with(&name(*index)));
                let (status, answer) = inner.answer(index.expect("only witnesses are asked"), &body).await;
                let back = inner.net.errand(&life, &format!("< {url} {status}")).await;
                if back { Ok((status, answer)) } else { lost() }
            })
        })
    }
}

impl Inner {
    fn below(&self, limit: u64) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).below(limit)
    }

    async fn answer(&self, index: usize, body: &[u8]) -> Answer {
        let member = &self.members[index];
        match member.habit {
            Habit::Sound => {}
            Habit::Slow => sleep(Duration::from_millis(500 + self.below(3000))).await,
            Habit::Dead => std::future::pending().await,
            Habit::Lying => return self.lie(member, body).await,
        }
        member.cosign(&self.log, body).unwrap_or_else(|refusal| refusal)
    }

    async fn lie(&self, member: &Member, body: &[u8]) -> Answer {
        let line = |signer: &Cosigner, text: &str| format!("{}\n", signer.cosign(text, 1_800_000_000)).into_bytes();
        let text = match read(&self.log, body) {
            Ok((_, _, checkpoint)) => checkpoint.text(),
            Err(_) => String::new(),
        };
        match self.below(8) {
            0 => (StatusCode::OK, line(&member.signer, "another log\n1\nAAAA\n")),
            1 => (StatusCode::OK, line(&signer(200), &text)),
            2 => (StatusCode::OK, Vec::new()),
            3 => (StatusCode::OK, b"\xff\xfe nothing".to_vec()),
            4 => (StatusCode::CONFLICT, format!("{}\n", self.below(500)).into_bytes()),
            5 => (StatusCode::UNPROCESSABLE_ENTITY, Vec::new()),
            // A cosignature on whatever is shown, consistent or not.
            6 => (StatusCode::OK, line(&member.signer, &text)),
            _ => std::future::pending().await,
        }
    }
}

/// Parses a request into old size, proof and checkpoint.
fn read(log: &[VerifierKey], body: &[u8]) -> Result<(u64, Vec<Digest>, Checkpoint), Answer> {
    let Request { old, proof, note } = Request::parse(body).map_err(|_| (StatusCode::BAD_REQUEST, Vec::new()))?;
    let checkpoint = log.iter().find_map(|key| Checkpoint::open(note, key).ok());
    let checkpoint = checkpoint.ok_or((StatusCode::FORBIDDEN, Vec::new()))?;
    Ok((old, proof, checkpoint))
}

impl Member {
    fn cosign(&self, log: &[VerifierKey], body: &[u8]) -> Result<Answer, Answer> {
        let (old, proof, new) = read(log, body)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (size, root) = last.as_ref().map_or((0, merkle::empty_root()), |last| (last.size, last.root));
        if old != size {
            return Err((StatusCode::CONFLICT, format!("{size}\n").into_bytes()));
        }
        if merkle::verify_consistency(old, new.size, &root, &new.root, &proof).is_err() {
            return Err((StatusCode::UNPROCESSABLE_ENTITY, Vec::new()));
        }
        let line = self.signer.cosign(&new.text(), 1_800_000_000);
        *last = Some(new);
        Ok((StatusCode::OK, format!("{line}\n").into_bytes()))
    }
}
