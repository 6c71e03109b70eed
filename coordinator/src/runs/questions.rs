//! Answers of clients that must fit what was asked: those to questions of running tools, which are stored in one form,
//! and those to `ask_user` with fixed choices.

use proto::choice::{ASK_USER, Choice};
use proto::elicitation::Elicitation;
use run::{Answer, Run};

use crate::admission::error::RequestError;

/// What the ids of all questions of running tools begin with: checking an answer to one compiles a schema.
const IDS_BEGIN_WITH: &str = "ask_";

/// Whether checking the answers is sure to be quick.
pub(super) fn is_quick(answers: &[Answer]) -> bool {
    !answers.iter().any(|answer| answer.call.as_str().starts_with(IDS_BEGIN_WITH))
}

/// The answers as they are stored. The same answer to a question is the same whatever form it had.
pub(super) fn checked(run: &Run, answers: &[Answer]) -> Result<Vec<Answer>, RequestError> {
    answers.iter().map(|answer| checked_one(run, answer)).collect()
}

fn checked_one(run: &Run, answer: &Answer) -> Result<Answer, RequestError> {
    let (Some(asked), Ok(given)) = (run.find(&answer.call), &answer.output) else { return Ok(answer.clone()) };
    let invalid = |violations| RequestError::AnswerInvalid { call: answer.call.clone(), violations };
    let arguments = &asked.spec().arguments;
    if !asked.is_question() {
        let choice = (asked.spec().tool.as_str() == ASK_USER).then(|| Choice::of_arguments(arguments)).flatten();
        choice.map_or(Ok(()), |choice| choice.check(given)).map_err(invalid)?;
        return Ok(answer.clone());
    }
    let Some(question) = Elicitation::of_arguments(arguments) else { return Ok(answer.clone()) };
    let reply = question.read(given).map_err(invalid)?;
    Ok(Answer { call: answer.call.clone(), output: Ok(vec![reply.to_content()]) })
}
