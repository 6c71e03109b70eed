//! The forms in which vendors' models ask for tool calls, and in which they want the results: an assistant turn goes in
//! [as it is](Turn::parse), the messages that answer it [come out](Turn::answers). No IO, and nothing of runs: who uses this
//! executes the calls in between.
//!
//! ```
//! use formats::turns::{Answer, Part, Turn};
//!
//! let turn = br#"{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"add","input":{"a":1,"b":2}}]}"#;
//! let turn = Turn::parse(turn, None)?;
//! assert_eq!((turn.form, turn.calls[0].name.as_str()), (formats::turns::Form::Anthropic, "add"));
//!
//! let messages = turn.answers(|_| Some(Answer::new(vec![Part::Json("3")])));
//! assert_eq!(
//!     messages[0].get(),
//!     r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"3"}]}]}"#,
//! );
//! # Ok::<(), formats::turns::Error>(())
//! ```
//!
//! # What is read
//!
//! | form | turn | calls | passed over and reported |
//! |---|---|---|---|
//! | `openai-chat` | response with `choices`, choice, message, list of its calls | `tool_calls` (`function`, `custom`), `function_call` | other types |
//! | `openai-responses` | response with `output`, list of its items, item | `function_call`, `custom_tool_call`, `shell_call`, `local_shell_call`, `apply_patch_call` | what the vendor executes (`mcp_call`, `web_search_call`, a `shell_call` in its container, …), what is answered in the same list, `mcp_approval_request`, `computer_call`, other types |
//! | `anthropic` | message, list of its blocks, block | `tool_use` | `server_tool_use`, `mcp_tool_use` and their results, other types |
//! | `gemini` | response with `candidates`, candidate, content, list of its parts, part | `functionCall`, with or without `id` | `executableCode`, `toolCall` |
//! | `mcp` | JSON-RPC request, batch | `tools/call` | other methods, responses |
//!
//! Free text (a custom tool's) becomes `{"input": "…"}`. A shell call is a call of the tool `shell`, `local_shell` or
//! `apply_patch` with its `action` or `operation` as arguments, as they are. A member that is null is taken as missing, one
//! that is not known is ignored, one that occurs twice is refused. Arguments that are not JSON, or that a vendor says are
//! unfinished, do not spoil the turn: see [`Arguments::Unreadable`].
//!
//! # What becomes of an answer
//!
//! | | text | JSON | image | PDF | other data | error |
//! |---|---|---|---|---|---|---|
//! | Chat, `tool` and `function` messages | text, parts in lines of their own | text | note | note | note | `Error: ` before the text |
//! | Responses, function and custom | text; `input_text` beside others | text | `input_image` | `input_file` | note | `Error: ` before the text, or an `input_text` of it first |
//! | Responses, shell | `stdout` | text; an `exit_code` in the last part is the outcome | note | note | note | `stderr` and exit code 1 |
//! | Responses, local shell | text | text | note | note | note | `Error: ` before the text |
//! | Responses, apply patch | text | text | note | note | note | `status: failed` |
//! | Anthropic | `text` block; an empty one is left out | `text` block | `image` block; note in an error | `document` block; note in an error | note | `is_error` |
//! | Gemini | `response.output` | the only part: as it is in `response.output`; else text | `inlineData` part | `inlineData` part | note | `response.error`, as text |
//! | MCP | `text` | `text`; the only part also as `structuredContent` (before revision 2026-07-28 only an object) | `image` | `resource` | `audio`, or `resource` with a made `uri` | `isError` |
//!
//! A note is a text that names media type and size, and says that the form cannot carry the data. Images are PNG, JPEG and
//! WebP, in Responses and Anthropic also GIF, in MCP of any type. Data of type `text/…` or `application/json` that is UTF-8 is
//! text in every form, but for `application/json` in MCP. A shell's output is one, however many commands were asked for, and
//! a timeout is an error.

mod answer;
mod error;
mod form;
mod forms;
mod json;
mod turn;

pub use answer::{Answer, Part};
pub use error::{Error, Problem};
pub use form::{Form, UnknownName};
pub use turn::{Arguments, Call, Reason, SkippedItem, Turn};

pub mod limit;
