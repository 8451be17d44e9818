//! Streams of cosigners: sound, silent, lying and replaced ones.

use coppice_verify::cosignature::{Cosigner, WitnessKey};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::*;

fn streams() -> Streams {
    let key: WitnessKey = Cosigner::from_seed("w", &[1; 32]).expect("a name").verifier().clone().into();
    let streams = Streams::default();
    streams.expect(&[Witness { url: "stream:acme/w".to_owned(), key }]);
    streams
}

fn post(streams: &Streams) -> Post {
    streams.post(Arc::new(|url, _| Box::pin(async move { Err(format!("over HTTP: {url}")) })))
}

/// The member's end of a stream.
struct End {
    requests: mpsc::Receiver<Result<v1::WitnessRequest, Status>>,
    answers: mpsc::Sender<Result<v1::WitnessAnswer, Status>>,
    task: JoinHandle<Result<(), Status>>,
}

impl End {
    async fn open(streams: &Streams) -> Self {
        let (send, requests) = mpsc::channel(1);
        let (answers, sent) = mpsc::channel(4);
        let (streams, before) = (streams.clone(), streams.opened.load(Ordering::Relaxed));
        let opened = streams.opened.clone();
        let task = tokio::spawn(async move { streams.serve("acme", ReceiverStream::new(sent), send).await });
        while opened.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        Self { requests, answers, task }
    }

    /// The next request. Signs of life are passed over.
    async fn request(&mut self) -> v1::WitnessRequest {
        loop {
            let request = self.requests.recv().await.expect("the stream is open").expect("a request");
            if request.id > 0 {
                return request;
            }
        }
    }

    async fn answer(&self, id: u64, status: u32, body: &[u8]) {
        let answer = v1::WitnessAnswer { id, status, body: body.to_vec().into(), ..Default::default() };
        self.answers.send(Ok(answer)).await.expect("the stream is open");
    }
}

const URL: &str = "stream:acme/w/add-checkpoint";

#[tokio::test(start_paused = true)]
async fn requests_go_down_and_answers_come_up() {
    let streams = streams();
    let post = post(&streams);
    assert!(streams.expects("acme") && !streams.expects("bolt"));
    assert!(post(URL.to_owned(), Vec::new()).await.expect_err("none is open").contains("no stream"));
    let over = post("http://w/add-checkpoint".to_owned(), Vec::new()).await;
    assert!(over.expect_err("the fake").contains("over HTTP: http://w"));
    let mut end = End::open(&streams).await;
    assert_eq!(streams.open(), 1);
    let asked = [b"one", b"two"].map(|body| tokio::spawn(post(URL.to_owned(), body.to_vec())));
    let requests = [end.request().await, end.request().await];
    for request in requests.iter().rev() {
        assert_eq!(request.path, "w/add-checkpoint");
        end.answer(request.id, 200, &[&request.body[..], b"!"].concat()).await;
    }
    for (asked, expected) in asked.into_iter().zip([b"one!", b"two!"]) {
        assert_eq!(asked.await.expect("it ends"), Ok((StatusCode::OK, expected.to_vec())));
    }
    drop(end);
    while streams.open() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lie_ends_the_stream_and_the_waiting() {
    for (id, status, length, part) in [
        (0, 200, 1, "nothing that was asked"),
        (9, 200, 1, "nothing that was asked"),
        (1, 99_999, 1, "status"),
        (1, 200, ANSWER_BYTES_MAX + 1, "too long"),
    ] {
        let streams = streams();
        let mut end = End::open(&streams).await;
        let asked = tokio::spawn(post(&streams)(URL.to_owned(), Vec::new()));
        assert_eq!(end.request().await.id, 1);
        end.answer(id, status, &vec![0; length]).await;
        let refused = end.task.await.expect("it ends").expect_err("it is refused");
        assert!(refused.message().contains(part), "{refused:?}");
        assert!(asked.await.expect("it ends").expect_err("no answer").contains("broke off"));
        assert_eq!(streams.open(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_holds_a_bounded_number_of_requests() {
    let streams = streams();
    let post = post(&streams);
    let mut end = End::open(&streams).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITING_MAX {
        waiting.push(tokio::spawn(post(URL.to_owned(), Vec::new())));
        end.request().await;
    }
    let over = post(URL.to_owned(), Vec::new()).await;
    assert!(over.expect_err("there is no room").contains("broke off"));
    // Callers that give up make room, and a late answer to them harms nothing.
    waiting.drain(..).for_each(|caller| caller.abort());
    tokio::task::yield_now().await;
    let asked = tokio::spawn(post(URL.to_owned(), Vec::new()));
    let id = end.request().await.id;
    end.answer(1, 200, b"late").await;
    end.answer(id, 409, b"7\n").await;
    assert_eq!(asked.await.expect("it ends"), Ok((StatusCode::CONFLICT, b"7\n".to_vec())));
    // A stream whose holder reads nothing more ends by itself.
    let ended = end.task.await.expect("it ends").expect_err("nobody reads");
    assert!(ended.message().contains("does not read"), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_takes_the_place_of_the_old_one() {
    let streams = streams();
    let old = End::open(&streams).await;
    let mut new = End::open(&streams).await;
    assert!(old.task.await.expect("it ends").expect_err("replaced").message().contains("another stream"));
    assert_eq!(streams.open(), 1);
    let asked = tokio::spawn(post(&streams)(URL.to_owned(), Vec::new()));
    let id = new.request().await.id;
    new.answer(id, 503, b"").await;
    assert_eq!(asked.await.expect("it ends"), Ok((StatusCode::SERVICE_UNAVAILABLE, Vec::new())));
}
