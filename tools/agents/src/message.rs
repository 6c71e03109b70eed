//! Assistant messages, put together of what an API sends: of the pieces of a stream, or of a whole response. The result
//! is the message as the API takes it back.

use std::collections::BTreeMap;

use client::agent::{MESSAGE_BYTES_MAX, Message, Said};
use serde_json::{Map, Value, json};

use crate::model::{Assembled, Incomplete, Unusable};

/// Calls or blocks of one message.
const PARTS_MAX: u64 = 512;

/// Bytes of a message so far. A stream has no other end.
#[derive(Debug, Default)]
struct Size(usize);

impl Size {
    fn grow(&mut self, bytes: usize) -> Result<(), Unusable> {
        self.0 = self.0.saturating_add(bytes);
        if self.0 > MESSAGE_BYTES_MAX { Err(Unusable::TooLong(self.0)) } else { Ok(()) }
    }
}

/// A message of Chat Completions.
#[derive(Debug, Default)]
pub(crate) struct ChatMessage {
    content: String,
    refusal: String,
    calls: BTreeMap<u64, ChatCall>,
    finish: Option<String>,
    tokens: u64,
    size: Size,
}

#[derive(Debug, Default)]
struct ChatCall {
    id: String,
    name: String,
    arguments: String,
}

impl Assembled for ChatMessage {
    fn piece(&mut self, piece: &Value) -> Result<String, Unusable> {
        self.tokens = tokens(&piece["usage"]).unwrap_or(self.tokens);
        let Some(choice) = piece["choices"].get(0) else { return Ok(String::new()) };
        let said = self.take(&choice["delta"])?;
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        Ok(said)
    }

    fn whole(answer: &Value) -> Result<Self, Unusable> {
        let choice = answer["choices"].get(0).ok_or("it has no choices")?;
        let finish = choice["finish_reason"].as_str().unwrap_or("stop").to_owned();
        let mut message = Self { tokens: tokens(&answer["usage"]).unwrap_or(0), ..Self::default() };
        message.take(&choice["message"])?;
        message.finish = Some(finish);
        Ok(message)
    }

    fn said(self) -> Result<Said, Incomplete> {
        let Self { content, refusal, calls, finish, tokens, .. } = self;
        match finish.as_deref() {
            None => return Err(Incomplete::BrokenOff),
            Some("length") => return Err(Incomplete::Stopped(too_long())),
            Some("content_filter") => {
                return Err(Incomplete::Stopped("the model's service filtered its message".to_owned()));
            }
            Some(_) if !refusal.is_empty() => {
                return Err(Incomplete::Stopped(format!("the model refused: {refusal}")));
            }
            Some(_) => {}
        }
        if content.is_empty() && calls.is_empty() {
            return Err(Incomplete::Stopped("the model gave no message".to_owned()));
        }
        let mut message = json!({ "role": "assistant", "content": content });
        if !calls.is_empty() {
            let calls = calls.into_values().map(|ChatCall { id, name, arguments }| {
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
            });
            message["tool_calls"] = calls.collect();
        }
        raw(&message, tokens)
    }
}

impl ChatMessage {
    /// Takes a message or a part of one, and returns its text.
    fn take(&mut self, part: &Value) -> Result<String, Unusable> {
        let text = part["content"].as_str().unwrap_or_default();
        let refusal = part["refusal"].as_str().unwrap_or_default();
        self.size.grow(text.len() + refusal.len())?;
        self.content.push_str(text);
        self.refusal.push_str(refusal);
        for (place, call) in (0..).zip(part["tool_calls"].as_array().into_iter().flatten()) {
            let index = call["index"].as_u64().unwrap_or(place);
            if index >= PARTS_MAX {
                return Err(Unusable::Malformed(format!("it has more than {PARTS_MAX} calls")));
            }
            let begun = self.calls.entry(index).or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if begun.id.is_empty() {
                begun.id = text(&call["id"]);
            }
            let name = text(&call["function"]["name"]);
            let arguments = match &call["function"]["arguments"] {
                // Some servers send the object itself.
                arguments @ Value::Object(_) => arguments.to_string(),
                arguments => text(arguments),
            };
            self.size.grow(name.len() + arguments.len())?;
            begun.name.push_str(&name);
            begun.arguments.push_str(&arguments);
        }
        Ok(text.to_owned())
    }
}

/// A message of Anthropic's Messages.
#[derive(Debug, Default)]
pub(crate) struct AnthropicMessage {
    blocks: BTreeMap<u64, Block>,
    stop: Option<String>,
    /// The stream said that it is complete.
    is_whole: bool,
    input_tokens: u64,
    output_tokens: u64,
    size: Size,
}

#[derive(Debug, Default)]
struct Block {
    fields: Map<String, Value>,
    /// The input of a call, as it arrives.
    input: String,
}

impl Assembled for AnthropicMessage {
    fn piece(&mut self, piece: &Value) -> Result<String, Unusable> {
        match piece["type"].as_str().unwrap_or_default() {
            "message_start" => self.count(&piece["message"]["usage"]),
            "content_block_start" => {
                let block = piece["content_block"].as_object().ok_or("a block is no object")?;
                self.size.grow(piece["content_block"].to_string().len())?;
                let said = block.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.block(piece)?.fields = block.clone();
                return Ok(said);
            }
            "content_block_delta" => {
                let fields = ["text", "thinking", "signature", "partial_json"];
                let pieces = fields.iter().filter_map(|field| piece["delta"][*field].as_str());
                self.size.grow(pieces.map(str::len).sum())?;
                return self.block(piece)?.extend(&piece["delta"]).map_err(Unusable::Malformed);
            }
            "message_delta" => {
                self.stop = piece["delta"]["stop_reason"].as_str().map(str::to_owned).or_else(|| self.stop.take());
                self.count(&piece["usage"]);
            }
            "message_stop" => self.is_whole = true,
            _ => {}
        }
        Ok(String::new())
    }

    fn whole(answer: &Value) -> Result<Self, Unusable> {
        let mut message = Self { is_whole: true, ..Self::default() };
        message.stop = answer["stop_reason"].as_str().map(str::to_owned);
        message.count(&answer["usage"]);
        for (index, block) in (0..PARTS_MAX).zip(answer["content"].as_array().ok_or("it has no content")?) {
            let fields = block.as_object().ok_or("a block is no object")?.clone();
            message.blocks.insert(index, Block { fields, input: String::new() });
        }
        Ok(message)
    }

    fn said(self) -> Result<Said, Incomplete> {
        if !self.is_whole {
            return Err(Incomplete::BrokenOff);
        }
        match self.stop.as_deref() {
            Some("max_tokens" | "model_context_window_exceeded") => return Err(Incomplete::Stopped(too_long())),
            Some("refusal") => return Err(Incomplete::Stopped("the model refused".to_owned())),
            _ => {}
        }
        let tokens = self.input_tokens + self.output_tokens;
        let content = self.blocks.into_values().filter_map(|block| block.whole().transpose());
        let content = content.collect::<Result<Vec<Value>, Incomplete>>()?;
        if content.is_empty() {
            return Err(Incomplete::Stopped("the model gave no message".to_owned()));
        }
        raw(&json!({ "role": "assistant", "content": content }), tokens)
    }
}

impl AnthropicMessage {
    fn block(&mut self, piece: &Value) -> Result<&mut Block, Unusable> {
        let index = piece["index"].as_u64().filter(|index| *index < PARTS_MAX).ok_or("a block has no usable index")?;
        Ok(self.blocks.entry(index).or_default())
    }

    /// Numbers of a stream are totals, so the last one counts.
    fn count(&mut self, usage: &Value) {
        let number = |name: &str| usage[name].as_u64();
        if let Some(input) = number("input_tokens") {
            let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"].map(number);
            self.input_tokens = cached.into_iter().flatten().fold(input, u64::saturating_add);
        }
        self.output_tokens = number("output_tokens").unwrap_or(self.output_tokens);
    }
}

impl Block {
    /// Adds a piece, and returns the text that it adds for the reader.
    fn extend(&mut self, delta: &Value) -> Result<String, String> {
        let piece = |name: &str| delta[name].as_str().ok_or_else(|| format!("a piece has no {name}"));
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                self.push("text", piece("text")?);
                return Ok(piece("text")?.to_owned());
            }
            "thinking_delta" => self.push("thinking", piece("thinking")?),
            "signature_delta" => self.push("signature", piece("signature")?),
            "input_json_delta" => self.input.push_str(piece("partial_json")?),
            _ => {}
        }
        Ok(String::new())
    }

    fn push(&mut self, field: &str, piece: &str) {
        match self.fields.get_mut(field) {
            Some(Value::String(text)) => text.push_str(piece),
            _ => drop(self.fields.insert(field.to_owned(), piece.into())),
        }
    }

    /// The block; `None` for a text without letters, which the API refuses.
    fn whole(self) -> Result<Option<Value>, Incomplete> {
        let Self { mut fields, input } = self;
        if !input.is_empty() {
            let wrong =
                |error| Incomplete::Stopped(format!("the model gave a call arguments that are no JSON: {error}"));
            let input: Value = serde_json::from_str(&input).map_err(wrong)?;
            fields.insert("input".to_owned(), input);
        }
        let is_empty = fields.get("type").is_some_and(|kind| kind == "text")
            && fields.get("text").and_then(Value::as_str).is_none_or(|text| text.trim().is_empty());
        Ok((!is_empty && !fields.is_empty()).then_some(Value::Object(fields)))
    }
}

fn too_long() -> String {
    "the model's message is longer than its limit of tokens: raise output_tokens_max".to_owned()
}

/// Tokens of a request, as Chat Completions counts them.
fn tokens(usage: &Value) -> Option<u64> {
    let number = |name: &str| usage[name].as_u64();
    let both = || Some(number("prompt_tokens")?.saturating_add(number("completion_tokens")?));
    number("total_tokens").or_else(both)
}

fn raw(message: &Value, tokens: u64) -> Result<Said, Incomplete> {
    let message = Message::from_string(message.to_string()).map_err(|error| Incomplete::Stopped(error.to_string()))?;
    Ok(Said { message, tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<M: Assembled>(pieces: &[Value]) -> Result<(Value, String, u64), Incomplete> {
        let (mut message, mut text) = (M::default(), String::new());
        for piece in pieces {
            text.push_str(&message.piece(piece).unwrap());
        }
        let Said { message, tokens } = message.said()?;
        Ok((serde_json::from_str(message.get()).unwrap(), text, tokens))
    }

    fn chat(delta: Value, finish: Option<&str>) -> Value {
        json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
    }

    #[test]
    fn a_streamed_chat_message_is_put_together() {
        let call =
            |index: u64, call: Value| chat(json!({ "tool_calls": [{ "index": index, "function": call }] }), None);
        let begun = |index: u64, id: &str, name: &str| {
            let function = json!({ "name": name, "arguments": "" });
            chat(
                json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }),
                None,
            )
        };
        let pieces = [
            chat(json!({ "role": "assistant", "content": "Let " }), None),
            chat(json!({ "content": "me." }), None),
            begun(0, "c1", "echo"),
            begun(1, "c2", "time"),
            call(0, json!({ "arguments": "{\"text\":" })),
            call(1, json!({ "arguments": "{}" })),
            call(0, json!({ "arguments": "\"hi\"}" })),
            chat(json!({}), Some("tool_calls")),
            json!({ "choices": [], "usage": { "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 } }),
        ];
        let (message, text, tokens) = said::<ChatMessage>(&pieces).unwrap();
        assert_eq!((text.as_str(), tokens), ("Let me.", 10));
        let calls = json!([
            { "id": "c1", "type": "function", "function": { "name": "echo", "arguments": "{\"text\":\"hi\"}" } },
            { "id": "c2", "type": "function", "function": { "name": "time", "arguments": "{}" } },
        ]);
        assert_eq!(message, json!({ "role": "assistant", "content": "Let me.", "tool_calls": calls }));
        assert_eq!(said::<ChatMessage>(&pieces[..7]), Err(Incomplete::BrokenOff));
    }

    #[test]
    fn a_streamed_anthropic_message_is_put_together() {
        let block =
            |index: u64, block: Value| json!({ "type": "content_block_start", "index": index, "content_block": block });
        let delta = |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
        let pieces = [
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": 7, "output_tokens": 1 } } }),
            block(0, json!({ "type": "thinking", "thinking": "", "signature": "" })),
            delta(0, json!({ "type": "thinking_delta", "thinking": "hm" })),
            delta(0, json!({ "type": "signature_delta", "signature": "s1" })),
            block(1, json!({ "type": "text", "text": "" })),
            delta(1, json!({ "type": "text_delta", "text": "Let me." })),
            block(2, json!({ "type": "tool_use", "id": "u1", "name": "echo", "input": {} })),
            delta(2, json!({ "type": "input_json_delta", "partial_json": "{\"text\":" })),
            delta(2, json!({ "type": "input_json_delta", "partial_json": "\"hi\"}" })),
            json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 9 } }),
            json!({ "type": "message_stop" }),
        ];
        let (message, text, tokens) = said::<AnthropicMessage>(&pieces).unwrap();
        assert_eq!((text.as_str(), tokens), ("Let me.", 16));
        let content = json!([
            { "type": "thinking", "thinking": "hm", "signature": "s1" },
            { "type": "text", "text": "Let me." },
            { "type": "tool_use", "id": "u1", "name": "echo", "input": { "text": "hi" } },
        ]);
        assert_eq!(message, json!({ "role": "assistant", "content": content }));
        assert_eq!(said::<AnthropicMessage>(&pieces[..10]), Err(Incomplete::BrokenOff));
    }

    #[test]
    fn a_stream_that_grows_beyond_what_is_stored_is_not_taken_further() {
        fn pieces<M: Assembled>(piece: &Value) -> (usize, Unusable) {
            let mut message = M::default();
            let taken = (0..).find_map(|count| Some((count, message.piece(piece).err()?)));
            taken.unwrap()
        }
        let half = "x".repeat(MESSAGE_BYTES_MAX / 2);
        let call = json!({ "tool_calls": [{ "index": 0, "function": { "arguments": half } }] });
        for piece in [json!({ "content": half }), json!({ "refusal": half }), call] {
            assert_eq!(pieces::<ChatMessage>(&chat(piece, None)), (2, Unusable::TooLong(MESSAGE_BYTES_MAX / 2 * 3)));
        }
        let kinds = [("text_delta", "text"), ("thinking_delta", "thinking"), ("input_json_delta", "partial_json")];
        for (kind, field) in kinds {
            let delta = json!({ "type": kind, field: half });
            let piece = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
            assert_eq!(pieces::<AnthropicMessage>(&piece), (2, Unusable::TooLong(MESSAGE_BYTES_MAX / 2 * 3)));
        }
    }

    #[test]
    fn a_message_that_was_cut_off_or_refused_is_no_answer() {
        let cut = said::<ChatMessage>(&[chat(json!({ "content": "So" }), Some("length"))]);
        assert!(matches!(cut, Err(Incomplete::Stopped(why)) if why.contains("output_tokens_max")));
        let refused = said::<ChatMessage>(&[chat(json!({ "refusal": "no" }), Some("stop"))]);
        assert_eq!(refused, Err(Incomplete::Stopped("the model refused: no".to_owned())));
        let empty = said::<ChatMessage>(&[chat(json!({ "content": null }), Some("stop"))]);
        assert_eq!(empty, Err(Incomplete::Stopped("the model gave no message".to_owned())));
    }
}
