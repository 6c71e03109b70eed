//! A server's questions to the user go to the client of the call.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses};
use toolyard_tool::{Answer, Context, Question, ToolError};

/// Asks the client of a call, and waits for the answer.
pub(super) async fn elicit(context: &Context, question: ElicitRequestParams) -> Result<ElicitResult, ToolError> {
    let question = match question {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            Question::new(message).json_schema(serde_json::to_value(requested_schema)?)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, elicitation_id, .. } => {
            Question::new(message).url(url, elicitation_id)
        }
        // Of a kind that is not known here.
        _ => return Ok(ElicitResult::new(ElicitationAction::Decline)),
    };
    Ok(match context.ask(question).await? {
        Answer::Accepted(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content),
        Answer::Declined => ElicitResult::new(ElicitationAction::Decline),
        Answer::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
    })
}

/// Answers what a server needs to go on with a call. Only questions to the user can be answered here.
pub(super) async fn answer(context: &Context, requests: InputRequests) -> Result<InputResponses, ToolError> {
    let mut responses = InputResponses::new();
    for (key, request) in requests {
        let response = match request {
            InputRequest::Elicitation(request) => serde_json::to_value(elicit(context, request.params).await?)?,
            InputRequest::CreateMessage(_) => return Err(needs("a model's answer (sampling)")),
            InputRequest::ListRoots(_) => return Err(needs("folders of a user (roots)")),
            other => return Err(needs(&format!("input of a kind that is not known here: {other:?}"))),
        };
        responses.insert(key, response);
    }
    Ok(responses)
}

fn needs(what: &str) -> ToolError {
    ToolError::new(format!("the MCP server asks for {what}, which this worker does not give"))
}
