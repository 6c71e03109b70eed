//! Answers to questions of running tools: they must fit what was asked, and are stored in one form.

use std::sync::Arc;

use proto::elicitation::Elicitation;
use run::{Answer, CommandError, Run, RunId};

use super::Runs;
use crate::admission::error::RequestError;
use crate::offload;

/// What the ids of all questions begin with. Answers to other calls cost no look at the run.
const IDS_BEGIN_WITH: &str = "ask_";

impl Runs {
    /// The answers as they are stored. Those to questions are checked and brought into their one form, so that the same
    /// answer is the same whatever form it had.
    pub(super) async fn checked_answers(&self, id: RunId, answers: &[Answer]) -> Result<Vec<Answer>, RequestError> {
        if !answers.iter().any(|answer| answer.call.as_str().starts_with(IDS_BEGIN_WITH)) {
            return Ok(answers.to_vec());
        }
        let known = |run: &Run| {
            let unknown = answers.iter().find(|answer| run.find(&answer.call).is_none());
            unknown.map_or(Ok(()), |answer| Err(CommandError::UnknownCall { call: answer.call.clone() }.into()))
        };
        let run = self.found_in(self.known(id).await?, known).await?.0.run;
        let answers = answers.to_vec();
        // A schema is compiled.
        offload::run_unless(false, move || answers.into_iter().map(|answer| checked(&run, answer)).collect()).await
    }
}

fn checked(run: &Arc<Run>, answer: Answer) -> Result<Answer, RequestError> {
    let Answer { call, output } = answer;
    let question = run.find(&call).filter(|call| call.is_question());
    let question = question.and_then(|question| Elicitation::of_arguments(&question.spec().arguments));
    let (Some(question), Ok(given)) = (question, &output) else { return Ok(Answer { call, output }) };
    match question.read(given) {
        Ok(reply) => Ok(Answer { call, output: Ok(vec![reply.to_content()]) }),
        Err(violations) => Err(RequestError::AnswerInvalid { call, violations }),
    }
}
