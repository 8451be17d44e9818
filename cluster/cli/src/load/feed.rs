//! The reader of the input. It has its own thread, so a slow pipe delays neither batches that were
//! already read nor answers.
//!
//! The thread reads at most [`WAITING_MAX`] batches ahead. It ends at the end of the input, at its
//! first error, or when nobody takes its batches any more. A thread that waits for a pipe ends with
//! the process.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
};

use coppice_types::Params;
use tokio::sync::mpsc;

use super::{
    git::Commits,
    lines::Lines,
    source::{Item, Source},
};
use crate::{args, failure::Failure};

/// Most batches that are read but not taken.
const WAITING_MAX: usize = 2;

/// Messages from the thread.
pub(super) enum Event {
    /// The input is open; its total size, if it is known.
    Opened(Option<u64>),
    /// A batch, and how much of the input has been read.
    Read(Box<Item>, u64),
    /// The input has ended.
    Ended(Ended),
}

/// The end of the input.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The error at the place that was reached.
    pub wrong: Option<Failure>,
    /// Parts of the input that were left out, with the reasons.
    pub skipped: Vec<String>,
}

/// An input that is being read.
pub(super) struct Feed(mpsc::Receiver<Event>);

impl Feed {
    /// Starts to read the input that the arguments name.
    pub(super) fn start(args: &args::Load, params: &Params) -> Result<Self, Failure> {
        let input = match (&args.git, &args.file) {
            (Some(dir), _) => Input::Git(dir.clone()),
            (None, Some(file)) => Input::Lines(file.clone()),
            (None, None) => return Err(Failure::usage("name a FILE, or --git DIR")),
        };
        let (send, receive) = mpsc::channel(WAITING_MAX);
        let params = params.clone();
        let reading = thread::Builder::new().name("load".to_owned()).spawn(move || input.read(&params, &send));
        reading.map_err(|error: io::Error| Failure::usage(format!("no thread: {error}")))?;
        Ok(Self(receive))
    }

    /// The next message. A cancelled call loses nothing.
    pub(super) async fn next(&mut self) -> Event {
        let broken = || Ended { wrong: Some(Failure::usage("the input's reader broke")), ..Ended::default() };
        self.0.recv().await.unwrap_or_else(|| Event::Ended(broken()))
    }
}

enum Input {
    Git(PathBuf),
    Lines(PathBuf),
}

impl Input {
    fn open(&self, params: &Params) -> Result<Box<dyn Source>, Failure> {
        Ok(match self {
            Self::Git(dir) => Box::new(Commits::open(dir, params)?),
            Self::Lines(file) => Box::new(Lines::open(Path::new(file), params)?),
        })
    }

    /// Reads the input to its end. It is not an error if nobody listens any more.
    fn read(&self, params: &Params, to: &mpsc::Sender<Event>) {
        let mut source = match self.open(params) {
            Ok(source) => source,
            Err(failure) => {
                let _ = to.blocking_send(Event::Ended(Ended { wrong: Some(failure), skipped: Vec::new() }));
                return;
            }
        };
        let mut told = to.blocking_send(Event::Opened(source.progress().1));
        let mut wrong = None;
        while told.is_ok() {
            told = match source.next() {
                Ok(Some(item)) => to.blocking_send(Event::Read(Box::new(item), source.progress().0)),
                Ok(None) => break,
                Err(failure) => {
                    wrong = Some(failure);
                    break;
                }
            };
        }
        let _ = to.blocking_send(Event::Ended(Ended { wrong, skipped: source.skipped().to_vec() }));
    }
}
