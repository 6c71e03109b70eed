//! A question to the user. The tool is only defined here: the client asks the user and answers the call.

use schemars::JsonSchema;

use super::scope;
use toolyard_tool::About;

pub const ASK_USER: &str = "ask_user";

/// As many answers as a person can weigh at a glance.
const OPTIONS_MAX: u32 = 20;

#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What to ask, as one clear question
    #[schemars(length(min = 1))]
    pub question: String,
    /// Answers to choose from, when there are only a few
    #[schemars(length(max = OPTIONS_MAX))]
    pub options: Option<Vec<String>>,
}

#[must_use]
pub fn ask_user() -> About {
    About::new("Asks the user a question and waits for the answer. Use it when only the user can decide or know.")
        .read_only()
        .category("user")
        .side_effect_scope(scope::NONE)
}
