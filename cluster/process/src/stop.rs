//! The request to stop, which comes from a signal.

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{Code, Failure};

/// Tells whether the process was asked to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// A request that is made when the sender sends `true`.
    pub(crate) fn by_order() -> (watch::Sender<bool>, Self) {
        let (order, asked) = watch::channel(false);
        (order, Self { asked })
    }

    /// Whether the process was asked to stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Waits until the process is asked to stop.
    pub async fn asked(&self) {
        let mut asked = self.asked.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending().await
        }
    }
}

/// The first SIGTERM or SIGINT asks the process to stop, the second ends it.
pub(crate) fn listen_for_signals() -> Result<Stop, Failure> {
    let failed = |error| Failure::new(Code::Unavailable, format!("cannot wait for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (ask, stop) = Stop::by_order();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if ask.send_replace(true) {
                tracing::warn!("a second signal: ending at once");
                std::process::exit(i32::from(Code::Unavailable as u8));
            }
            tracing::info!("asked to stop; a second signal ends at once");
        }
    });
    Ok(stop)
}
