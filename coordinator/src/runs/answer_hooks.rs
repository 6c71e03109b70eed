//! Hooks decide about the answers of clients before they are stored, as they do about results of workers.

use std::borrow::Cow;

use ::hooks::{CallStage, HookPoint, HookRequest};
use futures::StreamExt as _;
use futures::stream;
use run::limit::RESULT_BYTES_MAX;
use run::{Answer, CallError, CommandError, Content, ErrorKind, Fields, Outcome, Route, Run, RunId};

use super::{Runs, questions};
use crate::admission::error::RequestError;
use crate::offload::{self, Permit};
use owner::Known;

/// The most answers of one request for which hooks run at once.
const ANSWERS_ASKED_MAX: usize = 16;

impl Runs {
    /// Runs hooks on answers, and returns the answers to store. Hooks see only answers that fit their calls.
    pub(super) async fn ask_about_answers<'a>(
        &self,
        id: RunId,
        answers: &'a [Answer],
    ) -> Result<Cow<'a, [Answer]>, RequestError> {
        if !self.hooks.has(HookPoint::PostToolUse) && !self.hooks.has(HookPoint::ToolError) {
            return Ok(answers.into());
        }
        let permit = if questions::is_quick(answers) { None } else { Some(Permit::acquire().await) };
        let check = |run: &Run| {
            answers.iter().try_for_each(|answer| may_be_asked_about(run, answer))?;
            let check = || questions::checked(run, answers);
            permit.as_ref().map_or_else(check, |permit| permit.run(check))
        };
        let (Known { run, .. }, checked) = self.found_in(self.known(id).await?, check).await?;
        // Hooks may take long.
        drop(permit);
        let decided = stream::iter(checked).map(|answer| self.ask_about_answer(&run, answer));
        Ok(decided.buffered(ANSWERS_ASKED_MAX).collect::<Vec<_>>().await.into())
    }

    async fn ask_about_answer(&self, run: &Run, answer: Answer) -> Answer {
        let Some(call) = run.find(&answer.call) else { return answer };
        let spec = call.spec();
        let alias_of = self.registry.borrow().alias_of(&spec.tool, run.tenant());
        if spec.route != Route::Client || !self.hooks.watch(&spec.tool, alias_of.as_ref()) {
            return answer;
        }
        // Hooks were asked about the stored answer. They may have changed it, so the given one is not compared.
        match call.outcome() {
            Some(Outcome::Completed(result)) => return Answer { output: Ok(result.clone()), ..answer },
            Some(Outcome::Failed(error)) => return Answer { output: Err(error.clone()), ..answer },
            Some(Outcome::Cancelled { .. } | Outcome::Expired(_)) => return answer,
            None => {}
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
        let is_quick = questions::is_quick(std::slice::from_ref(&answer));
        match offload::run_unless(is_quick, || misfit(run, &answer)).await {
            Some(why) => {
                let message = format!("the client answered, and its answer was withheld: {why}");
                Answer { call: answer.call, output: Err(CallError::new(ErrorKind::HookFailed, message)) }
            }
            None => answer,
        }
    }
}

/// Refuses an answer that cannot be stored before hooks are asked about it.
fn may_be_asked_about(run: &Run, Answer { call, output }: &Answer) -> Result<(), RequestError> {
    let (size, limit) = (output.iter().flatten().map(Content::size).sum(), RESULT_BYTES_MAX);
    if size > limit {
        return Err(CommandError::OutputTooLarge { call: call.clone(), size, limit }.into());
    }
    if run.find(call).is_none() {
        return Err(CommandError::UnknownCall { call: call.clone() }.into());
    }
    Ok(())
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
