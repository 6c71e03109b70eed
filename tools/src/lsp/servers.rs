//! The language servers of a worker, kept for later calls: one for each workspace and language.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;

use super::server::{Server, Use};
use super::table::LanguageServer;
use sandbox::Sandbox;
use toolyard_tool::{Context, ToolError};

/// Servers of a worker that run at once. Each may take some hundred megabytes.
const SERVERS_MAX: usize = 6;

/// A workspace, and the name of its server.
type Key = (PathBuf, String);
/// A place for one server; calls that need it start it one after another.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Server>>>>;

/// The servers that run.
#[derive(Debug)]
pub(super) struct Servers {
    sandbox: Sandbox,
    slots: Mutex<HashMap<Key, Slot>>,
    /// Each runs one server. Dropping them kills the servers.
    tasks: Mutex<JoinSet<()>>,
}

impl Servers {
    pub(super) fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, slots: Mutex::default(), tasks: Mutex::default() }
    }

    /// The server of a workspace. It is started if it does not run.
    pub(super) async fn get(
        &self,
        context: &Context,
        of: &LanguageServer,
        workspace: &Path,
    ) -> Result<(Arc<Server>, Use), ToolError> {
        let key = (workspace.to_owned(), of.name.clone());
        let slot =
            Arc::clone(self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default());
        let mut slot = slot.lock().await;
        if let Some(server) = slot.as_ref().filter(|server| !server.is_over()) {
            return Ok((Arc::clone(server), server.take()));
        }
        *slot = None;
        self.make_room(&key)?;
        let (server, life) = Server::start(&self.sandbox, of, workspace).await?;
        {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(life);
        }
        let taken = server.take();
        // One that cannot be used is ended.
        if let Err(error) = server.initialize(context, of, workspace).await {
            server.client.end();
            return Err(error);
        }
        *slot = Some(Arc::clone(&server));
        Ok((server, taken))
    }

    /// Ends the server that has been idle the longest, if as many run as may.
    fn make_room(&self, for_key: &Key) -> Result<(), ToolError> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = Vec::new();
        slots.retain(|key, slot| {
            // A slot that is locked is being started.
            let Ok(server) = slot.try_lock() else {
                running.push((key.clone(), None));
                return true;
            };
            match server.as_ref().filter(|server| !server.is_over()) {
                Some(server) => {
                    running.push((key.clone(), Some(Arc::clone(server))));
                    true
                }
                None => key == for_key,
            }
        });
        running.retain(|(key, _)| key != for_key);
        if running.len() < SERVERS_MAX {
            return Ok(());
        }
        let idle = running.iter().filter_map(|(key, server)| {
            let server = server.as_ref()?;
            Some((server.idle_since()?, key, server))
        });
        match idle.min_by_key(|(since, _, _)| *since) {
            Some((_, key, server)) => {
                server.client.end();
                slots.remove(key);
                Ok(())
            }
            None => Err(ToolError::retryable(format!(
                "{SERVERS_MAX} language servers of this worker are in use, as many as it allows"
            ))),
        }
    }
}
