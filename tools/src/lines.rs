//! Takes lines from a thread that may block to the call that streams them.

use tokio::sync::mpsc;
use tokio::task::JoinError;

use toolyard_tool::{Context, Output, ToolError};

/// Lines that may wait between the thread and the call; then the thread waits. Also the most that go out as one piece.
const WAITING_MAX: usize = 512;

/// The sender of a thread's lines. When the call is over, sending fails, and the thread should stop.
pub(super) struct Lines(mpsc::Sender<String>);

#[derive(Debug, thiserror::Error)]
#[error("the call is over")]
pub(super) struct Over;

impl Lines {
    /// Sends a line; its end is added.
    pub(super) fn say(&self, mut line: String) -> Result<(), Over> {
        line.push('\n');
        self.0.blocking_send(line).map_err(|_| Over)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_closed()
    }
}

/// Runs `work` on a thread that may block, and streams its lines. The text it returns is the result.
///
/// A line is sent at once, together with those that came while the one before was being sent.
pub(super) async fn streamed<W>(context: &Context, work: W) -> Result<Output, ToolError>
where
    W: FnOnce(&Lines) -> Result<String, ToolError> + Send + 'static,
{
    let (sender, mut said) = mpsc::channel(WAITING_MAX);
    let work = tokio::task::spawn_blocking(move || work(&Lines(sender)));
    let stream = async {
        let mut batch = Vec::new();
        while said.recv_many(&mut batch, WAITING_MAX).await > 0 {
            context.text(batch.concat()).await?;
            batch.clear();
        }
        Ok::<(), ToolError>(())
    };
    tokio::select! {
        streamed = stream => streamed?,
        () = context.cancelled() => return Err(ToolError::new("the call was cancelled")),
    }
    finished(work.await).map(Output::from)
}

/// Runs `work` on a thread that may block, and waits for it.
pub(super) async fn on_thread<T, W>(work: W) -> Result<T, ToolError>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, ToolError> + Send + 'static,
{
    finished(tokio::task::spawn_blocking(work).await)
}

/// A panic on the thread is the tool's.
fn finished<T>(ended: Result<Result<T, ToolError>, JoinError>) -> Result<T, ToolError> {
    match ended {
        Ok(result) => result,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(ended) => Err(ended.into()),
        },
    }
}

/// `1 file`, `2 files`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use toolyard_tool::testkit;
    use toolyard_tool::{About, Tool};

    /// Works until sending fails, then drops its end of a channel.
    struct Endless {
        work: fn(&Lines) -> Result<String, ToolError>,
        alive: Sender<()>,
    }

    impl Tool for Endless {
        const NAME: &'static str = "endless";
        type Input = serde_json::Map<String, serde_json::Value>;

        fn about(&self) -> About {
            About::new("Never ends.")
        }

        async fn call(&self, context: &Context, _: Self::Input) -> Result<Output, ToolError> {
            let (work, alive) = (self.work, self.alive.clone());
            streamed(context, move |lines| {
                let _alive = alive;
                work(lines)
            })
            .await
        }
    }

    fn start(work: fn(&Lines) -> Result<String, ToolError>) -> (testkit::Call, Receiver<()>) {
        let (alive, ended) = std::sync::mpsc::channel();
        (testkit::start(Endless { work, alive }, json!({})), ended)
    }

    fn talk(lines: &Lines) -> Result<String, ToolError> {
        loop {
            lines.say("more".to_owned())?;
        }
    }

    fn think(lines: &Lines) -> Result<String, ToolError> {
        lines.say("hm".to_owned())?;
        while !lines.is_over() {
            std::thread::yield_now();
        }
        Err(Over.into())
    }

    /// The channel is never sent on: it closes when the thread and the call are gone.
    fn assert_ended(ended: &Receiver<()>) {
        let closed = ended.recv_timeout(Duration::from_secs(10));
        assert_eq!(closed, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_ends_when_its_call_is_cancelled() {
        for work in [talk, think] {
            let (mut call, ended) = start(work);
            assert!(call.chunk().await.is_some());
            call.cancel();
            assert_eq!(call.end().await.error(), "the call was cancelled");
            assert_ended(&ended);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_ends_when_its_call_is_dropped() {
        for work in [talk, think] {
            let (mut call, ended) = start(work);
            assert!(call.chunk().await.is_some());
            drop(call);
            assert_ended(&ended);
        }
    }

    #[tokio::test]
    #[should_panic(expected = "out of order")]
    async fn a_panic_on_the_thread_is_the_tools() {
        start(|_| panic!("out of order")).0.end().await;
    }
}
