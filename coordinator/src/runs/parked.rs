//! What there is to do about a call that is parked.

use std::sync::Arc;

use run::{CallId, Command, Run, RunId};

use super::{Refusal, Runs};
use crate::callers::Role;

impl Runs {
    /// Puts a parked call aside.
    pub(crate) async fn drop_call(&self, id: RunId, call: &CallId) -> Result<Arc<Run>, Refusal> {
        let work = self.command(id, |_| Command::Drop { call: call.clone() });
        self.judged(("DropCall", Role::Submit), (id, Some(call)), work).await
    }
}
