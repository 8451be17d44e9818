//! The answer to `add-checkpoint` (C2SP `tlog-witness`).

use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::Request,
    merkle,
    note::{self, VerifierKey},
};

use super::{EVIDENCE_ENDING, Witness};
use crate::{convict::Judged, error::Error, lines, record::Cosigned};

/// A line for the same checkpoint gets a new time at most this often, in seconds.
const FRESH_AFTER_S: u64 = 60;

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200: the cosignature line.
    Line(String),
    /// 400: the body is malformed, or `old` is above the checkpoint's size.
    Malformed(String),
    /// 403: no trusted key signed the checkpoint, or a line of one does not verify.
    Untrusted,
    /// 404: the checkpoint is of another log.
    Unknown,
    /// 409: `old` is not the size that was cosigned last, which is this one.
    Conflict(u64),
    /// 422: the checkpoint does not go on from what was cosigned.
    Inconsistent(&'static str),
    /// 503: nothing is cosigned now.
    NotNow(&'static str),
}

impl Answer {
    /// The status code of HTTP.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Line(_) => 200,
            Self::Malformed(_) => 400,
            Self::Untrusted => 403,
            Self::Unknown => 404,
            Self::Conflict(_) => 409,
            Self::Inconsistent(_) => 422,
            Self::NotNow(_) => 503,
        }
    }

    /// The body, which is one line.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Line(line) => format!("{line}\n"),
            Self::Malformed(why) => format!("{why}\n"),
            Self::Untrusted => "not signed by a trusted key of this log\n".to_owned(),
            Self::Unknown => "unknown log\n".to_owned(),
            Self::Conflict(size) => format!("{size}\n"),
            Self::Inconsistent(why) | Self::NotNow(why) => format!("{why}\n"),
        }
    }
}

/// What a request leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer.
    Done(Answer),
    /// The log must grow up to this signed note first.
    Behind(Vec<u8>),
}

impl Witness {
    /// Answers a request, or says that the mirror is behind.
    ///
    /// # Errors
    /// If the disk refuses or the mirror is damaged. Nothing was signed then.
    pub fn add_checkpoint(&mut self, body: &[u8]) -> Result<Outcome, Error> {
        match self.decide(body) {
            Ok(note) => Ok(Outcome::Behind(note)),
            Err(Stop::Answer(answer)) => Ok(Outcome::Done(answer)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// The note that the mirror lacks, or the reason to stop: the answer.
    fn decide(&mut self, body: &[u8]) -> Result<Vec<u8>, Stop> {
        let (request, new) = match self.read(body)? {
            Read::Request(request, new) => (request, new),
            Read::NotEmpty => return answer(Answer::Inconsistent("an empty log has another root")),
        };
        if request.old > new.size {
            return answer(Answer::Malformed("the old size is above the checkpoint's".to_owned()));
        }
        let is_ahead = match self.judge(request.note)? {
            Judged::Evidence(file) => {
                self.halt(&file, EVIDENCE_ENDING)?;
                return answer(Answer::Inconsistent("the log has contradicted itself: see /evidence/"));
            }
            Judged::Unsigned => return answer(Answer::Untrusted),
            Judged::Ahead => true,
            Judged::Fine => false,
        };
        if self.record.halted.is_some() {
            return answer(Answer::NotNow("halted: see /evidence/"));
        }
        if !self.floor {
            return answer(Answer::NotNow("others have not said yet what they saw of this cosigner"));
        }
        let cosigned = self.cosigned_checkpoint()?;
        let (size, root) = cosigned.map_or((0, merkle::empty_root()), |last| (last.size, last.root));
        if request.old != size {
            return answer(Answer::Conflict(size));
        }
        if merkle::verify_consistency(size, new.size, &root, &new.root, &request.proof).is_err() {
            // Either the proof or the log is wrong. The log that grows will tell.
            self.put_off(request.note)?;
            return answer(Answer::Inconsistent("the proof does not lead from what was cosigned to this checkpoint"));
        }
        if is_ahead { Ok(request.note.to_vec()) } else { self.cosign(request.note, &new) }
    }

    fn read<'b>(&self, body: &'b [u8]) -> Result<Read<'b>, Stop> {
        let request = match Request::parse(body) {
            Ok(request) => request,
            Err(error) => return self.read_empty(body, error),
        };
        let new = Checkpoint::claimed(request.note).map_err(|error| malformed(&error))?;
        if new.origin != self.ledger.name() {
            return answer(Answer::Unknown);
        }
        self.check_signed(request.note)?;
        Ok(Read::Request(request, new))
    }

    /// A body that is malformed only because it says that an empty log has entries, which has an
    /// answer of its own.
    fn read_empty<'b>(&self, body: &'b [u8], error: note::Error) -> Result<Read<'b>, Stop> {
        let refused = Err(malformed(&error));
        let Some(at) = body.windows(2).position(|pair| pair == b"\n\n") else { return refused };
        let note = &body[at + 2..];
        let text = std::str::from_utf8(note).ok().and_then(|note| note.split_once("\n\n")).map(|(text, _)| text);
        let lines: Vec<&str> = text.map(|text| text.split('\n').collect()).unwrap_or_default();
        let [origin, "0", root] = lines[..] else { return refused };
        // The same text with another size shows whether the rest of it is sound.
        let sound = body[..at + 1] == *b"old 0\n" && Checkpoint::parse(&format!("{origin}\n1\n{root}\n")).is_ok();
        match sound {
            false => refused,
            true if origin != self.ledger.name() => answer(Answer::Unknown),
            true => self.check_signed(note).map(|()| Read::NotEmpty),
        }
    }

    /// Checks that a trusted key signed a note, and that each line of a trusted key verifies.
    fn check_signed(&self, note: &[u8]) -> Result<(), Stop> {
        let changed = self.keys.changes().map(|(_, key)| key).take(self.record.accepted as usize);
        let mut signed = false;
        for key in std::iter::once(self.keys.first()).chain(changed) {
            match note::open(note, key) {
                Ok(_) => signed = true,
                Err(note::Error::Unsigned) => {}
                Err(error @ note::Error::Malformed(_)) => return Err(malformed(&error)),
                Err(_) => return answer(Answer::Untrusted),
            }
        }
        if signed { Ok(()) } else { answer(Answer::Untrusted) }
    }

    fn cosigned_checkpoint(&self) -> Result<Option<Checkpoint>, Stop> {
        let Some(cosigned) = &self.record.cosigned else { return Ok(None) };
        let damaged = |_| Stop::Failed(Error::Damaged("state: the cosigned note is none".to_owned()));
        Checkpoint::claimed(cosigned.note.as_bytes()).map(Some).map_err(damaged)
    }

    /// Cosigns a checkpoint of the verified log that is not smaller than the one before.
    fn cosign(&mut self, note: &[u8], new: &Checkpoint) -> Result<Vec<u8>, Stop> {
        let key = self.key_for(new.size)?;
        let note = lines::bare(note, &key).ok_or(Stop::Answer(Answer::Untrusted))?;
        let now = (self.clock.wall_ms() / 1000).max(1);
        let mut time = now;
        let same = self.record.cosigned.as_ref().is_some_and(|last| last.note == note);
        if !same && new.size < self.least {
            return answer(Answer::NotNow(
                "versions that stood at this size may have vanished unread: ask for a larger one",
            ));
        }
        if let Some(last) = &self.record.cosigned {
            if same && now < last.time.saturating_add(FRESH_AFTER_S) {
                return answer(Answer::Line(last.line.clone()));
            }
            time = now.max(last.time);
        }
        let line = self.signer.cosign(&new.text(), time);
        let cosigned = Cosigned { note, line: line.clone(), time };
        // The line leaves only once the record that has it is durable.
        self.write(|record| record.cosigned = Some(cosigned))?;
        answer(Answer::Line(line))
    }

    /// The key in force at a size, if it is trusted and accepted.
    fn key_for(&self, size: u64) -> Result<VerifierKey, Stop> {
        let before = self.keys.changes().filter(|(index, _)| index.0 < size).count();
        if before > self.record.accepted as usize || !self.keys.believes(size) {
            return answer(Answer::Untrusted);
        }
        Ok(self.keys.in_force(size).clone())
    }
}

/// A request, as far as it could be read.
enum Read<'b> {
    Request(Request<'b>, Checkpoint),
    /// A signed checkpoint of an empty log with the root of another one.
    NotEmpty,
}

/// Why a request goes no further.
enum Stop {
    Answer(Answer),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn answer<T>(answer: Answer) -> Result<T, Stop> {
    Err(Stop::Answer(answer))
}

fn malformed(error: &note::Error) -> Stop {
    Stop::Answer(Answer::Malformed(error.to_string()))
}
