//! Ctrl-C and SIGTERM: the first one starts an orderly shutdown, the second one ends the process at once.

use std::pin::pin;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;

#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// From here on signals no longer end the process by themselves.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Signals);
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Does the work until a signal comes. Then it requests a stop and waits for it, until another signal comes.
    pub(crate) async fn stop_well<E>(
        &mut self,
        work: impl Future<Output = Result<(), E>>,
        stop: &CancellationToken,
    ) -> Result<(), Failure>
    where
        Failure: From<E>,
    {
        let mut work = pin!(work);
        tokio::select! {
            done = &mut work => return Ok(done?),
            () = self.next() => {}
        }
        stop.cancel();
        tracing::info!("stopping; another signal ends it at once");
        tokio::select! {
            done = &mut work => Ok(done?),
            () = self.next() => Err(Failure::Interrupted),
        }
    }
}
