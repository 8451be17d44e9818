//! Leading: campaign, take over, run the sequencer, and again.
//!
//! The metadata store picks a candidate and no more: two that both think they were picked do no harm, since the root group
//! allots the term and refuses the older one (PROTOCOL 3.1). A leader whose clock is far from the root replicas' refuses
//! to lead (2.7).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use coppice_metadata::{Candidate, Metadata};
use coppice_proto::v1;
use coppice_types::{Reason, SessionId};
use tokio::sync::{mpsc, watch};

use super::{
    context::{Context, Leadership},
    sequencer::{Command, Entry, Exit, Sequencer, not_committed},
    stages::StageCommand,
    wire,
};
use crate::plan::{Refusal, Sessions};

/// Pause before a failed attempt to lead is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// Leads whenever it can, for ever; commands that come while it does not are refused.
pub async fn lead(
    context: Arc<Context>,
    metadata: Arc<dyn Metadata>,
    genesis: Vec<u8>,
    mut commands: mpsc::Receiver<Command>,
) {
    let candidate = Candidate::new(metadata.clone(), context.clock.clone(), context.limits.lease);
    let mut waiting = VecDeque::new();
    loop {
        let elected = tokio::select! {
            elected = candidate.campaign(&context.name) => elected,
            () = refuse_while_following(&context, &*metadata, &mut commands) => return,
        };
        let tenure = match elected {
            Ok(tenure) => tenure,
            Err(error) => {
                tracing::warn!(%error, "not picked as candidate");
                tokio::time::sleep(PAUSE * 4).await;
                continue;
            }
        };
        let exit = reign(&context, &genesis, &mut commands, &mut waiting, tenure.lost()).await;
        context.leadership.send_replace(Leadership::default());
        refuse_waiting(&mut waiting);
        if let Err(error) = tenure.resign().await {
            tracing::debug!(%error, "could not resign; the lease ends by itself");
        }
        if matches!(exit, Exit::Closed) {
            return;
        }
        tracing::info!(?exit, "leadership ended");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Refuses commands until their channel closes.
async fn refuse_while_following(context: &Context, metadata: &dyn Metadata, commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        let leader = metadata.snapshot().await.ok().and_then(|snapshot| snapshot.leader);
        let leader = leader.map(|leader| leader.name).filter(|leader| *leader != context.name).unwrap_or_default();
        context.leadership.send_replace(Leadership { leader, term: None });
        refuse(command);
    }
}

/// Leads as long as the candidacy lasts.
async fn reign(
    context: &Arc<Context>,
    genesis: &[u8],
    commands: &mut mpsc::Receiver<Command>,
    waiting: &mut VecDeque<Entry>,
    mut lost: watch::Receiver<bool>,
) -> Exit {
    loop {
        let taken = tokio::select! {
            taken = take_over(context, genesis, std::mem::take(waiting)) => taken,
            _ = lost.wait_for(|lost| *lost) => return Exit::Deposed,
        };
        let mut sequencer = match taken {
            Ok(sequencer) => sequencer,
            Err((error, entries)) => {
                tracing::warn!(%error, "could not take over");
                *waiting = entries;
                drain(commands, waiting);
                expire(waiting);
                if is_unfit(&error) {
                    // Another candidate may be fitter: this one stands back for a while.
                    tokio::time::sleep(context.limits.lease).await;
                    return Exit::Deposed;
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let term = sequencer.term;
        tracing::info!(term, head = %sequencer.decided.header.stamp, "leading");
        context.leadership.send_replace(Leadership { leader: context.name.clone(), term: Some(term) });
        let exit = tokio::select! {
            exit = sequencer.run(commands) => exit,
            _ = lost.wait_for(|lost| *lost) => Exit::Deposed,
        };
        // Whatever the version under way comes to, its clients are told; then the next term can begin.
        let _ = sequencer.settle_in_flight().await;
        *waiting = sequencer.give_back();
        match exit {
            Exit::Reset(reason) => tracing::warn!(reason, "taking over again"),
            exit => return exit,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

type Failed = (tonic::Status, VecDeque<Entry>);

/// Becomes the leader of a new term, and learns where the ledger stands.
async fn take_over(context: &Arc<Context>, genesis: &[u8], waiting: VecDeque<Entry>) -> Result<Sequencer, Failed> {
    let taken = async {
        let asked_ms = context.clock.wall_ms();
        let answer = context.root.take_over(&context.name, genesis.to_vec()).await?;
        check_clock(asked_ms, context.clock.wall_ms(), &answer.clocks_ms, context.limits.clock_skew_max)?;
        let view = wire::view_in(answer.view)?;
        context.check_cluster(&view)?;
        let mut sessions = Sessions::new(view.genesis.params.session_window);
        for session in &answer.sessions {
            learn(&mut sessions, session)?;
        }
        Ok((view, answer.term, sessions))
    };
    match taken.await {
        Ok((view, term, sessions)) => Ok(Sequencer::new(context.clone(), &view, term, sessions, waiting)),
        Err(error) => Err((error, waiting)),
    }
}

fn learn(sessions: &mut Sessions, session: &v1::SessionState) -> Result<(), tonic::Status> {
    let id = SessionId::from_slice(&session.session_id).ok_or_else(|| wire::broken("session"))?;
    sessions.open_whole(id, session.highest_number);
    for batch in &session.batches {
        sessions.record(id, batch.number, wire::done_in(batch)?);
    }
    Ok(())
}

/// A leader stamps headers with its clock, so it must not be far off. The root replicas' clocks were read at some moment
/// between `asked_ms` and `answered_ms`.
fn check_clock(asked_ms: u64, answered_ms: u64, clocks_ms: &[u64], skew_max: Duration) -> Result<(), Refusal> {
    let mut clocks = clocks_ms.to_vec();
    clocks.sort_unstable();
    let Some(median) = clocks.get(clocks.len() / 2) else { return Ok(()) };
    let apart_ms = asked_ms.saturating_sub(*median).max(median.saturating_sub(answered_ms));
    if Duration::from_millis(apart_ms) <= skew_max {
        return Ok(());
    }
    let message = format!("this clock is {apart_ms} ms from the median of the root replicas': it may not lead");
    Err(Refusal::new(Reason::InvalidArgument, message))
}

/// Trying again at once would be of no use.
fn is_unfit(error: &tonic::Status) -> bool {
    matches!(coppice_proto::status::reason(error), Some(Reason::WrongCluster | Reason::InvalidArgument))
}

fn drain(commands: &mut mpsc::Receiver<Command>, waiting: &mut VecDeque<Entry>) {
    while let Ok(command) = commands.try_recv() {
        match command {
            Command::Commit(entry) => waiting.push_back(entry),
            other => refuse(other),
        }
    }
}

fn expire(waiting: &mut VecDeque<Entry>) {
    let now = tokio::time::Instant::now();
    for entry in std::mem::take(waiting) {
        if entry.deadline > now {
            waiting.push_back(entry);
        } else {
            let message = "no leader could be made in time; the batch was not committed";
            entry.answer(Err(Refusal::new(Reason::Unavailable, message).into()));
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// PROTOCOL 2.7.
    #[test]
    fn a_clock_far_from_the_median_may_not_lead() {
        let check =
            |asked, answered, clocks: &[u64]| check_clock(asked, answered, clocks, Duration::from_secs(1)).is_ok();
        assert!(check(10_000, 10_010, &[9_100, 10_005, 99_000]), "the median counts, not the extremes");
        assert!(check(10_000, 14_000, &[12_000, 12_000, 12_000]), "a slow answer is no skew");
        assert!(!check(10_000, 10_010, &[8_000, 8_500, 10_000]));
        assert!(!check(10_000, 10_010, &[11_500, 11_500, 10_000]));
        assert!(check(10_000, 10_010, &[]));
    }
}
