//! Many calls over one stream: `ExecuteRuns`, with what is said of each run given to whoever asked for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use futures::channel::mpsc;
use proto::v1::{self, run_service_client::RunServiceClient};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::execute::{is_completed, new_call, request};

/// Who waits for a run, and whether its call has completed so far.
type Waiting = HashMap<u64, (oneshot::Sender<bool>, bool)>;

pub(crate) struct Submission {
    asking: mpsc::UnboundedSender<v1::ExecuteRunsRequest>,
    shared: Arc<Mutex<(u64, Waiting)>>,
    /// Ends with this.
    _reading: JoinSet<()>,
}

impl Submission {
    pub(crate) async fn open(mut client: RunServiceClient<Channel>) -> anyhow::Result<Self> {
        let (asking, requests) = mpsc::unbounded();
        let mut answers = client.execute_runs(requests).await?.into_inner();
        let shared: Arc<Mutex<(u64, Waiting)>> = Arc::default();
        let (mut reading, waiting) = (JoinSet::new(), Arc::clone(&shared));
        reading.spawn(async move {
            while let Ok(Some(message)) = answers.message().await {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                for piece in message.pieces {
                    if let Some((_, completed)) = waiting.1.get_mut(&piece.tag) {
                        *completed |= piece.events.iter().any(is_completed);
                    }
                    if (piece.end.is_some() || piece.refusal.is_some())
                        && let Some((caller, completed)) = waiting.1.remove(&piece.tag)
                    {
                        // Whoever asked may have gone; then nobody misses the answer.
                        caller.send(completed).unwrap_or_default();
                    }
                }
            }
            // Whoever still waits hears that nobody answers.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
        });
        Ok(Self { asking, shared, _reading: reading })
    }

    pub(crate) fn call(&self, tool: &str) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let (asking, shared) = (self.asking.clone(), Arc::clone(&self.shared));
        let run = Some(request(new_call(tool, "{}".to_owned())));
        async move {
            let (caller, answer) = oneshot::channel();
            let tag = {
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.0 += 1;
                let tag = shared.0;
                shared.1.insert(tag, (caller, false));
                tag
            };
            asking.unbounded_send(v1::ExecuteRunsRequest { tag, run }).context("the stream is closed")?;
            ensure!(answer.await.context("the stream broke")?, "the call did not complete");
            Ok(())
        }
    }
}
