//! The streams of a member that no coordinator can reach: it opens one to each coordinator, and
//! answers the requests that come down.

use std::{sync::Arc, time::Duration};

use coppice_client::{Client, Options};
use coppice_env::{Rng, SystemRng};
use coppice_proto::v1;
use coppice_types::Backoff;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::{Shared, Which};
use crate::{
    config::{Api, Config},
    error::Error,
    witness::Answer,
};

/// The pauses after streams that broke off.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// A coordinator that sends nothing for so long is gone: it sends something every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Most requests of one stream that are answered at once. Further ones wait.
const REQUESTS_MAX: usize = 8;

/// The streams that the settings ask for.
#[derive(Clone, Debug)]
pub struct Streams {
    /// The name of this member's certificate.
    name: String,
    api: Api,
}

impl Streams {
    /// The streams of these settings; `None` if they ask for none.
    #[must_use]
    pub fn of(config: &Config) -> Option<Self> {
        Some(Self { name: config.stream.clone()?, api: config.api.clone()? })
    }
}

impl Shared {
    /// Keeps a stream open to each coordinator. Never returns.
    pub async fn stream(self: Arc<Self>, streams: Option<Streams>) {
        let Some(Streams { name, api }) = streams else { return std::future::pending().await };
        let mut tasks = JoinSet::new();
        for endpoint in &api.endpoints {
            let options = Api { endpoints: vec![endpoint.clone()], ..api.clone() }.options();
            tasks.spawn(self.clone().keep_open(name.clone(), options));
        }
        while tasks.join_next().await.is_some() {}
        std::future::pending().await
    }

    async fn keep_open(self: Arc<Self>, name: String, options: Result<Options, Error>) {
        let mut backoff = PAUSES;
        loop {
            let began = self.clock.now();
            let why = match &options {
                Ok(options) => {
                    let options = Options { attempt_timeout: SILENCE_MAX, ..options.clone() };
                    self.answer_down(&name, options).await
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(why, "a stream to a coordinator broke off");
            if self.clock.now().saturating_sub(began) > SILENCE_MAX {
                backoff.reset();
            }
            let pause = backoff.next_pause();
            let mut draw = [0; 2];
            SystemRng.fill(&mut draw);
            // Members do not all come back at the same moment.
            sleep(pause.mul_f64(0.5 + f64::from(u16::from_le_bytes(draw)) / f64::from(u16::MAX))).await;
        }
    }

    /// Opens a stream, and answers what comes. Returns the reason why it ended.
    async fn answer_down(self: &Arc<Self>, name: &str, options: Options) -> String {
        let client = match Client::new(options) {
            Ok(client) => client,
            Err(error) => return error.to_string(),
        };
        let (answers, sent) = mpsc::channel(REQUESTS_MAX);
        let mut requests = match client.witness(name, sent).await {
            Ok(requests) => requests,
            Err(error) => return error.to_string(),
        };
        let places = Arc::new(Semaphore::new(REQUESTS_MAX));
        loop {
            let request = match requests.next().await {
                Err(error) => return error.to_string(),
                Ok(None) => return "the coordinator has ended it".to_owned(),
                Ok(Some(request)) => request,
            };
            if request.id == 0 {
                continue;
            }
            let Ok(place) = places.clone().acquire_owned().await else { return "closed".to_owned() };
            let (shared, answers) = (self.clone(), answers.clone());
            tokio::spawn(async move {
                let (status, body) = shared.answered(&request.path, request.body).await;
                // The stream may have ended meanwhile.
                let answer = v1::WitnessAnswer { id: request.id, status, body: body.into(), ..Default::default() };
                let _ = answers.send(answer).await;
                drop(place);
            });
        }
    }

    async fn answered(self: &Arc<Self>, path: &str, body: axum::body::Bytes) -> (u32, String) {
        let which = match path {
            "w/add-checkpoint" => Which::Witness,
            "a/add-checkpoint" if self.audits() => Which::Auditor,
            _ => return (404, "not found\n".to_owned()),
        };
        let answer = match self.add_checkpoint(which, body).await {
            Ok(answer) => answer,
            Err(Error::Refused(_) | Error::Unavailable(_)) => Answer::NotNow("not now"),
            Err(_) => return (500, "internal error\n".to_owned()),
        };
        (answer.status().into(), answer.text())
    }
}
