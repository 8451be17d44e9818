//! Leading: campaigns, takes over, runs the sequencer, and begins again.
//!
//! The metadata store only picks a candidate. Two coordinators that both think they were picked do
//! no harm, since the root group allots terms and refuses the older one (PROTOCOL 3.1). So a leader
//! stays while the store is silent. Its reign ends when
//!
//! - the store says that another candidate is picked,
//! - the root group has another term, or does not answer,
//! - its clock is far from the root replicas' clocks (PROTOCOL 2.7),
//! - or the coordinator is told to stop.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_metadata::{Candidate, Metadata, Tenure};
use coppice_proto::{convert, v1};
use coppice_types::{Reason, Term};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    command::{Command, Entry, Exit, not_committed, refuse},
    fitness::{check_clock, unfit},
    resources::Resources,
    sequencer::Sequencer,
};
use crate::{
    groups::wire::{self, View},
    plan::{Refusal, Sessions},
    shown::{Leadership, Shown},
};

/// Pause before a failed attempt to lead is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the next leader may be delayed by the version that is being decided.
const SETTLE_MAX: Duration = Duration::from_millis(300);

/// Leads whenever it can, until the coordinator is told to stop. Refuses commands while it does not
/// lead.
///
/// When told to stop, it lets the version under way be decided and resigns, so that the next leader
/// begins at once. Then it drops `resigned`.
pub async fn lead(
    shown: Arc<Shown>,
    resources: Resources,
    metadata: Arc<dyn Metadata>,
    genesis: Vec<u8>,
    mut commands: mpsc::Receiver<Command>,
    mut stop: watch::Receiver<bool>,
    resigned: oneshot::Sender<()>,
) {
    let candidate = Candidate::new(metadata, resources.limits.lease);
    loop {
        let elected = tokio::select! {
            biased;
            () = told(&mut stop) => break,
            elected = candidate.campaign(shown.name()) => elected,
            () = refuse_while_following(&mut commands) => return,
        };
        let pause = match elected {
            Ok(tenure) => match reign((&shown, &resources), &genesis, &mut commands, tenure, &mut stop).await {
                Exit::Closed => break,
                Exit::Unfit(reason) => {
                    tracing::warn!(reason, "not fit to lead; another candidate may be");
                    resources.limits.lease
                }
                exit => {
                    tracing::info!(?exit, "leadership ended");
                    PAUSE
                }
            },
            Err(error) => {
                tracing::warn!(%error, "not picked as candidate");
                PAUSE * 4
            }
        };
        tokio::select! {
            biased;
            () = told(&mut stop) => break,
            () = tokio::time::sleep(pause) => {}
            () = refuse_while_following(&mut commands) => return,
        }
    }
    drop(resigned);
    refuse_while_following(&mut commands).await;
}

/// Waits until the coordinator is to stop.
async fn told(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        // The sender is gone, so the flag never changes again.
        std::future::pending().await
    }
}

/// Refuses commands until their channel closes.
async fn refuse_while_following(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        refuse(command);
    }
}

/// Leads as long as the candidacy lasts and this coordinator is fit to lead. Then gives the
/// candidacy up.
async fn reign(
    (shown, resources): (&Shown, &Resources),
    genesis: &[u8],
    commands: &mut mpsc::Receiver<Command>,
    tenure: Tenure,
    stop: &mut watch::Receiver<bool>,
) -> Exit {
    let mut lost = tenure.lost();
    let mut waiting = VecDeque::new();
    let mut last = None;
    let (exit, sequencer) = loop {
        let taken = tokio::select! {
            biased;
            () = told(stop) => break (Exit::Closed, None),
            _ = lost.wait_for(|lost| *lost) => break (Exit::Deposed, None),
            taken = take_over((shown.name(), resources), genesis, last) => taken,
        };
        let mut sequencer = match taken {
            Ok(Some((view, term, sessions))) => {
                Sequencer::new(resources.clone(), &view, term, sessions, std::mem::take(&mut waiting))
            }
            Ok(None) => break (Exit::Deposed, None),
            Err(error) => {
                tracing::warn!(%error, "could not take over");
                if is_unfit(&error) {
                    break (Exit::Unfit(error.to_string()), None);
                }
                if shown.could_be_replaced() {
                    break (Exit::CutOff, None);
                }
                // No other candidate can be picked, so the candidacy is kept. Waiting clients must
                // retry.
                refuse_waiting(&mut waiting);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let term = sequencer.term();
        resources.metrics.took_over();
        tracing::info!(term = term.0, head = %sequencer.stamp(), "leading");
        shown.leadership.send_replace(Leadership { leader: shown.name().to_owned(), term: Some(term) });
        let exit = tokio::select! {
            biased;
            () = told(stop) => Exit::Closed,
            _ = lost.wait_for(|lost| *lost) => Exit::Deposed,
            exit = unfit(shown, resources, term) => exit,
            exit = sequencer.run(commands) => exit,
        };
        let Exit::Reset(reason) = exit else { break (exit, Some(sequencer)) };
        tracing::warn!(reason, "taking over again");
        // The next term begins after the version under way is decided and answered.
        let ended = tokio::select! {
            biased;
            () = told(stop) => Some(Exit::Closed),
            _ = lost.wait_for(|lost| *lost) => Some(Exit::Deposed),
            exit = unfit(shown, resources, term) => Some(exit),
            _ = sequencer.settle_in_flight() => None,
        };
        if let Some(exit) = ended {
            break (exit, Some(sequencer));
        }
        waiting = sequencer.give_back();
        last = Some(term);
        tokio::time::sleep(PAUSE).await;
    };
    shown.leadership.send_replace(Leadership::default());
    refuse_waiting(&mut waiting);
    abdicate(sequencer, commands, tenure, stop).await;
    exit
}

/// Ends a reign: refuses waiting batches, so that the next leader gets them; answers those that are
/// being decided; gives the candidacy up.
async fn abdicate(
    sequencer: Option<Sequencer>,
    commands: &mut mpsc::Receiver<Command>,
    tenure: Tenure,
    stop: &mut watch::Receiver<bool>,
) {
    let Some(mut sequencer) = sequencer else { return resign(tenure).await };
    refuse_waiting(&mut sequencer.give_back());
    let settled = {
        let settle = tokio::time::timeout(SETTLE_MAX, sequencer.settle_in_flight());
        tokio::pin!(settle);
        tokio::select! {
            biased;
            settled = &mut settle => settled.is_ok(),
            () = refuse_while_following(commands) => settle.await.is_ok(),
        }
    };
    // Resigning first lets another leader take over while the outcome of the last version is still
    // open.
    resign(tenure).await;
    if !settled {
        tokio::select! {
            biased;
            () = told(stop) => {}
            _ = sequencer.settle_in_flight() => {}
            () = refuse_while_following(commands) => {}
        }
    }
}

async fn resign(tenure: Tenure) {
    if let Err(error) = tenure.resign().await {
        tracing::debug!(%error, "could not resign; the lease ends by itself");
    }
}

/// Becomes the leader of a new term, and learns the ledger's state. Returns `None` if another term
/// began after `last`, this coordinator's last term. Then the leadership is not taken back, even if
/// the metadata store picks this coordinator.
async fn take_over(
    (name, Resources { log, limits, clock, .. }): (&str, &Resources),
    genesis: &[u8],
    last: Option<Term>,
) -> Result<Option<(View, Term, Sessions)>, tonic::Status> {
    if let Some(last) = last
        && log.view().await?.term != last
    {
        return Ok(None);
    }
    // A candidate that can't sign must not begin a term. Before genesis there is no view to check.
    if log.view().await.is_ok() {
        log.keys.check().map_err(unable)?;
    }
    let asked_ms = clock.wall_ms();
    let answer = log.root.take_over(name, genesis.to_vec()).await?;
    check_clock(asked_ms, clock.wall_ms(), &answer.clocks_ms, limits.clock_skew_max)?;
    let view = wire::view_in(answer.view)?;
    log.check_cluster(&view)?;
    log.keys.check().map_err(unable)?;
    log.attested.establish(&view, Instant::now() + limits.root_timeout).await?;
    let mut sessions = Sessions::new(view.genesis.params.session_window);
    for session in &answer.sessions {
        learn(&mut sessions, session)?;
    }
    Ok(Some((view, Term(answer.term), sessions)))
}

/// The refusal to lead without the ledger's key.
fn unable(refusal: Refusal) -> tonic::Status {
    Refusal::new(Reason::InvalidArgument, refusal.message).into()
}

fn learn(sessions: &mut Sessions, session: &v1::SessionState) -> Result<(), tonic::Status> {
    let id = wire::read(convert::session_id(&session.session_id))?;
    sessions.open_whole(id, session.highest_number);
    for batch in &session.batches {
        sessions.record(id, batch.number, wire::done_in(batch)?);
    }
    Ok(())
}

/// Whether another attempt to lead would fail in the same way.
fn is_unfit(error: &tonic::Status) -> bool {
    matches!(coppice_proto::status::reason(error), Some(Reason::WrongCluster | Reason::InvalidArgument))
}

fn refuse_waiting(waiting: &mut VecDeque<Entry>) {
    for entry in waiting.drain(..) {
        entry.answer(Err(not_committed()));
    }
}
