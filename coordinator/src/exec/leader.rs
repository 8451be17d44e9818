//! Leading: campaign, take over, run the sequencer, and again.
//!
//! The metadata store picks a candidate and no more: two that both think they were picked do no harm, since the root group
//! allots the term and refuses the older one (PROTOCOL 3.1). So a leader goes on while the store is silent. It ends when the store says that
//! another is picked, when the root group has another term, when the root group does not answer it, when its clock is far from the root
//! replicas' (2.7), and when it is told to stop.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_metadata::{Candidate, Metadata, Tenure};
use coppice_proto::v1;
use coppice_types::{Reason, SessionId};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    context::{Context, Leadership},
    fitness::{check_clock, unfit},
    sequencer::{Command, Entry, Exit, Sequencer, not_committed},
    stages::StageCommand,
    wire,
};
use crate::plan::{Refusal, Sessions};

/// Pause before a failed attempt to lead is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the next leader is held up for the outcome of the version under way.
const SETTLE_MAX: Duration = Duration::from_millis(300);

/// Leads whenever it can, until it is told to stop; commands that come while it does not are refused.
///
/// Told to stop, it lets the version under way be decided and resigns, so that the next one begins at once; then it drops `resigned`.
pub async fn lead(
    context: Arc<Context>,
    metadata: Arc<dyn Metadata>,
    genesis: Vec<u8>,
    mut commands: mpsc::Receiver<Command>,
    mut stop: watch::Receiver<bool>,
    resigned: oneshot::Sender<()>,
) {
    let candidate = Candidate::new(metadata, context.limits.lease);
    loop {
        let elected = tokio::select! {
            biased;
            () = told(&mut stop) => break,
            elected = candidate.campaign(&context.name) => elected,
            () = refuse_while_following(&mut commands) => return,
        };
        let pause = match elected {
            Ok(tenure) => match reign(&context, &genesis, &mut commands, tenure, &mut stop).await {
                Exit::Closed => break,
                Exit::Unfit(reason) => {
                    tracing::warn!(reason, "not fit to lead; another candidate may be");
                    context.limits.lease
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

/// Ends when the coordinator is to stop.
async fn told(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        // Nobody is left who could say so.
        std::future::pending().await
    }
}

/// Refuses commands until their channel closes.
async fn refuse_while_following(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        refuse(command);
    }
}

/// Leads as long as the candidacy lasts, or until this coordinator is not fit to; then it gives the candidacy up.
async fn reign(
    context: &Arc<Context>,
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
            taken = take_over(context, genesis, last) => taken,
        };
        let mut sequencer = match taken {
            Ok(Some((view, term, sessions))) => {
                Sequencer::new(context.clone(), &view, term, sessions, std::mem::take(&mut waiting))
            }
            Ok(None) => break (Exit::Deposed, None),
            Err(error) => {
                tracing::warn!(%error, "could not take over");
                if is_unfit(&error) {
                    break (Exit::Unfit(error.to_string()), None);
                }
                if context.could_be_replaced() {
                    break (Exit::CutOff, None);
                }
                // Nobody can be picked in its place: the candidacy is worth keeping. What waits is asked to come again.
                refuse_waiting(&mut waiting);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let term = sequencer.term;
        context.metrics.took_over();
        tracing::info!(term, head = %sequencer.decided.header.stamp, "leading");
        context.leadership.send_replace(Leadership { leader: context.name.clone(), term: Some(term) });
        let exit = tokio::select! {
            biased;
            () = told(stop) => Exit::Closed,
            _ = lost.wait_for(|lost| *lost) => Exit::Deposed,
            exit = unfit(context, term) => exit,
            exit = sequencer.run(commands) => exit,
        };
        let Exit::Reset(reason) = exit else { break (exit, Some(sequencer)) };
        tracing::warn!(reason, "taking over again");
        // Whatever the version under way comes to, its clients are told; then the next term can begin.
        let ended = tokio::select! {
            biased;
            () = told(stop) => Some(Exit::Closed),
            _ = lost.wait_for(|lost| *lost) => Some(Exit::Deposed),
            exit = unfit(context, term) => Some(exit),
            _ = sequencer.settle_in_flight() => None,
        };
        if let Some(exit) = ended {
            break (exit, Some(sequencer));
        }
        waiting = sequencer.give_back();
        last = Some(term);
        tokio::time::sleep(PAUSE).await;
    };
    context.leadership.send_replace(Leadership::default());
    refuse_waiting(&mut waiting);
    abdicate(sequencer, commands, tenure, stop).await;
    exit
}

/// Ends a reign: what waits goes to the next leader, what is being decided is answered, the candidacy is given up.
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
    // Another can take over while this one still finds out what became of its last version.
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

/// Becomes the leader of a new term, and learns where the ledger stands. `None` if another term began after the `last` one that was ours:
/// then it is not taken back, however the metadata store may stand.
async fn take_over(
    context: &Arc<Context>,
    genesis: &[u8],
    last: Option<u64>,
) -> Result<Option<(wire::View, u64, Sessions)>, tonic::Status> {
    if let Some(last) = last
        && context.view().await?.term != last
    {
        return Ok(None);
    }
    // A candidate that could not sign disturbs nobody. Before genesis there is no view, and nothing to be known.
    if context.view().await.is_ok() {
        context.keys.check().map_err(unable)?;
    }
    let asked_ms = context.clock.wall_ms();
    let answer = context.root.take_over(&context.name, genesis.to_vec()).await?;
    check_clock(asked_ms, context.clock.wall_ms(), &answer.clocks_ms, context.limits.clock_skew_max)?;
    let view = wire::view_in(answer.view)?;
    context.check_cluster(&view)?;
    context.keys.check().map_err(unable)?;
    context.attested.establish(&view, Instant::now() + context.limits.root_timeout).await?;
    let mut sessions = Sessions::new(view.genesis.params.session_window);
    for session in &answer.sessions {
        learn(&mut sessions, session)?;
    }
    Ok(Some((view, answer.term, sessions)))
}

/// Without the ledger's key it may not lead.
fn unable(refusal: Refusal) -> tonic::Status {
    Refusal::new(Reason::InvalidArgument, refusal.message).into()
}

fn learn(sessions: &mut Sessions, session: &v1::SessionState) -> Result<(), tonic::Status> {
    let id = SessionId::from_slice(&session.session_id).ok_or_else(|| wire::broken("session"))?;
    sessions.open_whole(id, session.highest_number);
    for batch in &session.batches {
        sessions.record(id, batch.number, wire::done_in(batch)?);
    }
    Ok(())
}

/// Trying again at once would be of no use.
fn is_unfit(error: &tonic::Status) -> bool {
    matches!(coppice_proto::status::reason(error), Some(Reason::WrongCluster | Reason::InvalidArgument))
}

fn refuse_waiting(waiting: &mut VecDeque<Entry>) {
    for entry in waiting.drain(..) {
        entry.answer(Err(not_committed()));
    }
}

/// Refuses a command that no leader took.
pub fn refuse(command: Command) {
    match command {
        Command::Commit(entry) | Command::Stage(StageCommand::Finalize { entry, .. }) => {
            entry.answer(Err(not_committed()));
        }
        Command::Stage(StageCommand::Stage { reply, .. }) => {
            let _ = reply.send(Err(not_committed()));
        }
        Command::Stage(StageCommand::Discard { reply, .. }) => {
            let _ = reply.send(Err(not_committed()));
        }
        Command::Admin(request) => {
            let _ = request.reply.send(Err(not_committed()));
        }
        Command::SessionOpened(..) => {}
    }
}
