//! The formats of other APIs. [`turns`] reads the tool calls of models and writes the messages that answer them, from
//! what [`heard`] has collected of a run. [`tools`] describes tools in the formats of model vendors, [`openai`] shows a
//! run as OpenAI's Responses and Assistants APIs, and [`mcp`] presents tools, results and open calls to clients of the
//! Model Context Protocol. [`options`] are those of Toolyard in requests of these forms. No IO, no clock, no
//! randomness.

pub mod heard;
pub mod mcp;
pub mod openai;
pub mod options;
pub mod tools;
pub mod turns;
