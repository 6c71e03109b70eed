//! Tokens that allow answering one client call, and nothing else.

use std::time::Duration;

use run::{CallId, CallState, CommandError, Run, RunId, Timestamp};

use super::Runs;
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Role;
use owner::Known;

/// Default lifetime of an answer token: enough for a person who has just received the question.
const ANSWER_TOKEN: Duration = Duration::from_secs(15 * 60);

impl Runs {
    /// A token with which a client call can be answered, and when it expires.
    pub(crate) async fn answer_token(
        &self,
        id: RunId,
        call: &CallId,
        lifetime: Option<Duration>,
    ) -> Result<(String, Timestamp), RequestError> {
        let made = async {
            self.caller.must(Role::Answer)?;
            self.caller.may_give_out()?;
            let find = |run: &Run| {
                let found = run.find(call).ok_or_else(|| CommandError::UnknownCall { call: call.clone() })?;
                if *found.state() != CallState::WaitingForClient {
                    return Err(CommandError::CallNotWaiting { call: call.clone(), state: found.state_name() }.into());
                }
                Ok(found.spec().deadline)
            };
            let (Known { run, .. }, deadline) = self.found_in(self.known(id).await?, find).await?;
            let until = ::nats::now().after(lifetime.unwrap_or(ANSWER_TOKEN)).min(deadline);
            let until = self.caller.gives_until(until);
            let token = self.callers.answer_token(&self.caller, (id, call.clone(), run.tenant().cloned()), until)?;
            Ok((token, until))
        };
        let made = made.await;
        let command = audit::Command { run: Some(id), call: Some(call), ..audit::Command::new("CreateAnswerToken") };
        audit::command(&self.caller, command, made.as_ref().err().map(RequestError::reason));
        made
    }
}
