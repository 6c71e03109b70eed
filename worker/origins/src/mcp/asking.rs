//! A server's questions to the user go to the client of the call.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses};
use toolyard_tool::{Context, ToolError};

/// Asks the client of a call.
pub(super) async fn elicit(_context: &Context, _question: ElicitRequestParams) -> Result<ElicitResult, ToolError> {
    Ok(ElicitResult::new(ElicitationAction::Decline))
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
