//! The input, read by a thread: so a slow pipe holds up neither what was read before nor the answers.
//!
//! The thread reads at most [`WAITING_MAX`] batches ahead. It ends when the input does, at the first place that is wrong, or
//! when nobody takes its batches any more. One that waits for a pipe ends with the process.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
};

use coppice_types::Params;
use tokio::sync::mpsc;

use super::{Item, Source, git::Commits, lines::Lines};
use crate::{args, failure::Failure};

/// Most batches that are read and not taken.
const WAITING_MAX: usize = 2;

/// What the thread tells.
pub(super) enum Told {
    /// The input is open, and has so much in it, if that is known.
    Opened(Option<u64>),
    /// A batch, and how much of the input was read.
    Read(Box<Item>, u64),
    /// There is no more.
    Ended(Ended),
}

/// How the input ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// What is wrong at the place that was reached.
    pub wrong: Option<Failure>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

/// An input that is being read.
pub(super) struct Feed(mpsc::Receiver<Told>);

impl Feed {
    /// Begins to read the input that the arguments name.
    ///
    /// # Errors
    /// If they name none, or there is no thread.
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

    /// What comes next. A call that is given up loses nothing.
    pub(super) async fn next(&mut self) -> Told {
        let broken = || Ended { wrong: Some(Failure::usage("the input's reader broke")), ..Ended::default() };
        self.0.recv().await.unwrap_or_else(|| Told::Ended(broken()))
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

    /// Reads it to its end. Nobody may be left to be told.
    fn read(&self, params: &Params, to: &mpsc::Sender<Told>) {
        let mut source = match self.open(params) {
            Ok(source) => source,
            Err(failure) => {
                let _ = to.blocking_send(Told::Ended(Ended { wrong: Some(failure), skipped: Vec::new() }));
                return;
            }
        };
        let mut told = to.blocking_send(Told::Opened(source.progress().1));
        let mut wrong = None;
        while told.is_ok() {
            told = match source.next() {
                Ok(Some(item)) => to.blocking_send(Told::Read(Box::new(item), source.progress().0)),
                Ok(None) => break,
                Err(failure) => {
                    wrong = Some(failure);
                    break;
                }
            };
        }
        let _ = to.blocking_send(Told::Ended(Ended { wrong, skipped: source.skipped().to_vec() }));
    }
}
