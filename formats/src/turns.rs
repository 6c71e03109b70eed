//! The formats in which models request tool calls and expect the results. [`Turn::parse`] reads an assistant turn as
//! the vendor sent it, and [`Turn::answers`] writes the messages that answer it. No IO, and no dependency on runs: the
//! caller executes the calls in between.
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
//! # Supported turns
//!
//! | form | turn | calls | skipped and reported |
//! |---|---|---|---|
//! | `openai-chat` | response with `choices`, choice, message, list of its calls | `tool_calls` (`function`, `custom`, LangChain's `tool_call`), `function_call` | other types |
//! | `openai-responses` | response with `output`, list of its items, item | `function_call`, `custom_tool_call`, `shell_call`, `local_shell_call`, `apply_patch_call` | items that the vendor executes (`mcp_call`, `web_search_call`, a `shell_call` in its container, …), calls answered in the same list, `mcp_approval_request`, `computer_call`, other types |
//! | `anthropic` | message, list of its blocks, block | `tool_use` | `server_tool_use`, `mcp_tool_use` and their results, other types |
//! | `gemini` | response with `candidates`, candidate, content, list of its parts, part | `functionCall`, with or without `id` | `executableCode`, `toolCall` |
//! | `mcp` | JSON-RPC request, batch | `tools/call` | other methods, responses |
//!
//! A turn may also be the list of the events of its stream, whose fragments are put together; pointers are then those of
//! the message that they stream. A [`History`] is a conversation; its last turn is answered.
//!
//! Free text (of a custom tool) becomes `{"input": "…"}`. A shell call is a call of the tool `shell`, `local_shell` or
//! `apply_patch`, with its unchanged `action` or `operation` as arguments. A member that is null counts as missing. An
//! unknown member is ignored, and a repeated member is an error. Arguments that are not JSON, or that the vendor marks
//! as unfinished, do not invalidate the turn: see [`Arguments::Unreadable`].
//!
//! # Conversion of answers
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
//! Citations of a text are left out: models read the text.
//!
//! A note is a text with the media type and the size of data that the form cannot carry. Images are PNG, JPEG and WebP,
//! in Responses and Anthropic also GIF, in MCP of any type. Data of type `text/…` or `application/json` that is UTF-8
//! is text in every form, except `application/json` in MCP. A shell call has one output, independent of its number of
//! commands, and a timeout is an error.

mod answer;
mod chunks;
mod conversation;
mod error;
mod form;
mod forms;
mod history;
pub(crate) mod json;
mod turn;

pub use answer::{Answer, Part};
pub use conversation::conversation_of;
pub use error::{Error, Problem};
pub use form::{Form, UnknownName};
pub(crate) use forms::responses::{Kind as ItemKind, output_item};
pub use history::History;
pub use turn::{Arguments, Call, Reason, SkippedItem, Turn};

pub mod limit;
