//! A witness as C2SP `tlog-witness` specifies it, and its faults.

#[path = "../../../cluster/verify/tests/common/mldsa.rs"]
mod mldsa;

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use coppice_coordinator::Witness;
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{Cosigner, Request, WitnessKey},
    merkle,
    note::VerifierKey,
};
use tokio::{net::TcpListener, sync::watch};

use self::mldsa::MlDsaWitness;

/// The behaviour of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It behaves as specified.
    Sound,
    /// It takes requests and never answers.
    Silent,
    /// It signs something else.
    SignsAnother,
    /// It answers with more than a client should read.
    Endless,
    /// It answers with errors.
    Broken,
}

/// The time of all cosignatures.
const TIME: u64 = 1_700_000_000;

/// A witness that runs in the test.
pub struct Member {
    inner: Arc<Inner>,
    url: String,
}

struct Inner {
    signer: Signer,
    log: VerifierKey,
    habit: watch::Sender<Habit>,
    /// The size that was cosigned last, and the number of requests.
    state: Mutex<State_>,
}

enum Signer {
    Ed25519(Box<Cosigner>),
    MlDsa44(Box<MlDsaWitness>),
}

#[derive(Default)]
struct State_ {
    last: Option<Checkpoint>,
    cosigned: Vec<Checkpoint>,
    asked: u64,
}

impl Member {
    /// Starts a witness of this log on a free port of the loopback interface.
    pub async fn start(seed: u8, log: VerifierKey, habit: Habit) -> Self {
        let signer = Cosigner::from_seed(&format!("w{seed}.example"), &[seed; 32]).expect("a name");
        Self::run(Signer::Ed25519(Box::new(signer)), log, habit).await
    }

    /// Starts a witness with an ML-DSA-44 key.
    pub async fn start_mldsa(seed: u8, log: VerifierKey, habit: Habit) -> Self {
        Self::run(Signer::MlDsa44(Box::new(MlDsaWitness::new("ml.example", seed))), log, habit).await
    }

    async fn run(signer: Signer, log: VerifierKey, habit: Habit) -> Self {
        let inner =
            Arc::new(Inner { signer, log, habit: watch::Sender::new(habit), state: Mutex::new(State_::default()) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let url = format!("http://{}/prefix", listener.local_addr().expect("it listens"));
        let routes = Router::new().route("/prefix/add-checkpoint", post(answer)).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { inner, url }
    }

    /// The witness, as in a coordinator's settings.
    pub fn witness(&self) -> Witness {
        Witness { url: self.url.clone(), key: WitnessKey::parse(&self.inner.signer.vkey()).expect("a key") }
    }

    /// The witness's line of a policy file.
    pub fn policy_line(&self, name: &str) -> String {
        format!("witness {name} {}\n", self.inner.signer.vkey())
    }

    /// Changes the behaviour from now on.
    pub fn behave(&self, habit: Habit) {
        self.inner.habit.send_replace(habit);
    }

    /// The size that the witness cosigned last.
    pub fn size(&self) -> u64 {
        self.inner.state.lock().expect("no handler panics").last.as_ref().map_or(0, |last| last.size)
    }

    /// All checkpoints that the witness cosigned.
    pub fn cosigned(&self) -> Vec<Checkpoint> {
        self.inner.state.lock().expect("no handler panics").cosigned.clone()
    }

    /// How often the witness was asked.
    pub fn asked(&self) -> u64 {
        self.inner.state.lock().expect("no handler panics").asked
    }
}

async fn answer(State(inner): State<Arc<Inner>>, body: String) -> impl IntoResponse {
    let habit = *inner.habit.borrow();
    inner.state.lock().expect("no handler panics").asked += 1;
    match habit {
        Habit::Silent => std::future::pending().await,
        Habit::Broken => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        Habit::Endless => (StatusCode::OK, "x".repeat(1 << 20)),
        Habit::Sound | Habit::SignsAnother => inner.cosign(&body, habit).unwrap_or_else(|refused| refused),
    }
}

impl Signer {
    fn vkey(&self) -> String {
        match self {
            Self::Ed25519(signer) => signer.verifier().to_string(),
            Self::MlDsa44(signer) => signer.vkey(),
        }
    }

    fn cosign(&self, checkpoint: &Checkpoint) -> String {
        match self {
            Self::Ed25519(signer) => signer.cosign(&checkpoint.text(), TIME),
            Self::MlDsa44(signer) => signer.cosign(checkpoint, TIME),
        }
    }
}

impl Inner {
    fn cosign(&self, body: &str, habit: Habit) -> Result<(StatusCode, String), (StatusCode, String)> {
        let bad = || (StatusCode::BAD_REQUEST, String::new());
        let Request { old, proof, note } = Request::parse(body.as_bytes()).map_err(|_| bad())?;
        let new = Checkpoint::open(note, &self.log).map_err(|_| (StatusCode::FORBIDDEN, String::new()))?;
        let mut state = self.state.lock().expect("no handler panics");
        let last = state.last.as_ref().map_or((0, merkle::empty_root()), |last| (last.size, last.root));
        if old > new.size {
            return Err(bad());
        }
        if old != last.0 {
            return Err((StatusCode::CONFLICT, format!("{}\n", last.0)));
        }
        if merkle::verify_consistency(old, new.size, &last.1, &new.root, &proof).is_err() {
            return Err((StatusCode::UNPROCESSABLE_ENTITY, String::new()));
        }
        let line = match habit {
            Habit::SignsAnother => self.signer.cosign(&Checkpoint { size: new.size + 1, ..new.clone() }),
            _ => self.signer.cosign(&new),
        };
        state.cosigned.push(new.clone());
        state.last = Some(new);
        Ok((StatusCode::OK, format!("{line}\n")))
    }
}
