//! Waiting for asynchronous calls, from any thread.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::unconstrained,
};

/// A runtime with threads of its own.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Always set, until the drop.
    runtime: Option<Runtime>,
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Driver {
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("coppice-revm").enable_all().build()?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Waits for a call. It is polled by the caller's thread, so a read that the cache answers
    /// costs no switch of threads. `Runtime::block_on` would panic within another runtime.
    pub(crate) fn run<F: Future>(&self, call: F) -> F::Output {
        let _context = self.runtime.as_ref().expect("the runtime lives as long as the driver").enter();
        // The budget of a task from which the caller may come is not the call's.
        let mut call = pin!(unconstrained(call));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = call.as_mut().poll(&mut context) {
                return output;
            }
            thread::park();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The drop of a runtime waits for its threads, which panics within another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    async fn far() -> u32 {
        tokio::spawn(async {
            sleep(Duration::from_millis(1)).await;
            7
        })
        .await
        .expect("the task ends")
    }

    #[test]
    fn a_call_is_awaited_on_a_plain_thread() {
        assert_eq!(Driver::start().expect("threads").run(far()), 7);
    }

    /// More polls than tokio allows a task without a pause.
    #[test]
    fn calls_are_awaited_within_another_runtime_and_the_driver_may_end_there() {
        let outer = Builder::new_current_thread().build().expect("a runtime");
        outer.block_on(async {
            let driver = Driver::start().expect("threads");
            for _ in 0..500 {
                assert_eq!(driver.run(far()), 7);
            }
        });
    }

    #[test]
    fn a_limit_of_a_call_holds() {
        let driver = Driver::start().expect("threads");
        let limited = driver.run(async { timeout(Duration::from_millis(1), std::future::pending::<()>()).await });
        assert!(limited.is_err());
    }
}
