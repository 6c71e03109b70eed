//! Hooks decide about the answers of clients before they are stored, as they do about results of workers.

use ::hooks::{CallStage, HookPoint, HookRequest};
use futures::StreamExt as _;
use futures::stream;
use run::limit::RESULT_BYTES_MAX;
use run::{Answer, CallError, CommandError, Content, ErrorKind, Fields, Run, RunId};

use super::{Runs, questions};
use crate::admission::error::RequestError;
use owner::Known;

/// The most answers of one request for which hooks run at once.
const ANSWERS_ASKED_MAX: usize = 16;

impl Runs {
    /// Runs hooks on answers, and returns the answers to store. Hooks see only answers that fit their calls.
    pub(super) async fn ask_about_answers(&self, id: RunId, answers: &[Answer]) -> Result<Vec<Answer>, RequestError> {
        if !self.hooks.has(HookPoint::PostToolUse) && !self.hooks.has(HookPoint::ToolError) {
            return Ok(answers.to_vec());
        }
        let check = |run: &Run| {
            let unknown = answers.iter().find(|answer| run.find(&answer.call).is_none());
            match unknown {
                Some(Answer { call, .. }) => Err(CommandError::UnknownCall { call: call.clone() }.into()),
                None => questions::checked(run, answers),
            }
        };
        let (Known { run, .. }, checked) = self.found_in(self.known(id).await?, check).await?;
        let decided = stream::iter(checked).map(|answer| self.ask_about_answer(&run, answer));
        Ok(decided.buffered(ANSWERS_ASKED_MAX).collect().await)
    }

    async fn ask_about_answer(&self, run: &Run, answer: Answer) -> Answer {
        let Some(call) = run.find(&answer.call) else { return answer };
        let spec = call.spec();
        let alias_of = self.registry.borrow().catalog.find(&spec.tool).and_then(|entry| entry.alias_of.clone());
        if !self.hooks.watch(&spec.tool, alias_of.as_ref()) {
            return answer;
        }
        let Answer { call, output } = answer;
        let happened = match output {
            Ok(result) => CallStage::Completed { result, extra_state: Fields::default(), output: None },
            Err(error) => CallStage::Failed { error },
        };
        let question = HookRequest {
            run: run.id(),
            call: Some(call.clone()),
            tool: spec.tool.clone(),
            alias_of,
            tenant: run.tenant().cloned(),
            attempt: None,
            metadata: spec.metadata.clone(),
            arguments: spec.arguments.clone(),
            happened,
        };
        let decided = self.hooks.after(question).await.outcome;
        let answer = Answer { call, output: decided.map(|completion| completion.result) };
        match misfit(run, &answer) {
            Some(why) => {
                let message = format!("the client answered, and its answer was withheld: {why}");
                Answer { call: answer.call, output: Err(CallError::new(ErrorKind::HookFailed, message)) }
            }
            None => answer,
        }
    }
}

/// Why an answer that hooks decided cannot be stored.
fn misfit(run: &Run, answer: &Answer) -> Option<String> {
    let size: usize = answer.output.iter().flatten().map(Content::size).sum();
    if size > RESULT_BYTES_MAX {
        return Some(format!("a hook changed it to {size} bytes; the limit is {RESULT_BYTES_MAX} bytes"));
    }
    let checked = questions::checked(run, std::slice::from_ref(answer));
    checked.err().map(|error| format!("a hook changed it: {error}"))
}
