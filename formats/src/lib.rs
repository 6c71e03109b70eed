//! The forms of other APIs. [`turns`] reads the tool calls of vendors' models and writes the messages that answer them;
//! [`tools`] describes tools in the forms
//! that models want; [`openai`] shows a run as OpenAI's Responses and Assistants APIs. No IO, no clock, no randomness.

pub mod openai;
pub mod tools;
pub mod turns;
