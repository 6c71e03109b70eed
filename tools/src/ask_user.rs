//! A question to the user. The tool is only defined here: the client asks the user and answers the call. A coordinator
//! checks the answer if free text is not allowed (`proto::choice`).

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
    /// Answers to choose from, when there are only a few: texts, or labels with descriptions
    #[schemars(length(max = OPTIONS_MAX))]
    pub options: Option<Vec<Choice>>,
    /// The user may choose several of the options; the answer is then a JSON array of them
    pub multi_select: Option<bool>,
    /// Whether the user may answer with a text of their own beside the options; true if not given
    pub free_text: Option<bool>,
}

/// An answer to choose from.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
pub enum Choice {
    /// The answer itself
    Text(String),
    /// With what it means
    Described(Described),
}

/// An answer to choose from, with what it means.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// The answer itself
    #[schemars(length(min = 1))]
    pub label: String,
    /// What choosing it means
    pub description: Option<String>,
}

#[must_use]
pub fn ask_user() -> About {
    About::new("Asks the user a question and waits for the answer. Use it when only the user can decide or know.")
        .read_only()
        .category("user")
        .side_effect_scope(scope::NONE)
}
