//! Starts something outside: posts a signed message to an address that the worker's operator allows.

use std::time::Duration;

use hooks::client::Posted;
use hooks::sign;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use run::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout};
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

use crate::triggers::{Trigger, Triggers};

/// The name of the tool.
pub const REMOTE_TRIGGER: &str = "remote_trigger";
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a response that are read, and that are shown.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
const EXCERPT_BYTES_MAX: usize = 2 * 1024;
/// How long a receiver may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// How often a message is sent, and the pause before the next time, which doubles.
const TRIES_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause that a receiver may request.
const PAUSE_LONGEST: Duration = Duration::from_secs(15);
const AGENT: &str = concat!("toolyard/", env!("CARGO_PKG_VERSION"));

/// Posts to the triggers of a worker.
#[derive(Debug, Clone)]
pub struct RemoteTrigger(Triggers);

/// A message to a trigger.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerInput {
    /// The name of a trigger; the description of the tool lists them
    trigger: String,
    /// The message: any JSON object of at most 64 KiB
    #[serde(default)]
    payload: Map<String, Value>,
}

impl RemoteTrigger {
    /// These triggers.
    #[must_use]
    pub fn new(triggers: Triggers) -> Self {
        Self(triggers)
    }
}

impl Tool for RemoteTrigger {
    const NAME: &'static str = REMOTE_TRIGGER;
    type Input = TriggerInput;

    fn about(&self) -> About {
        let line = |(name, trigger): (&String, &Trigger)| match trigger.description.as_str() {
            "" => format!("\n- {name}"),
            described => format!("\n- {name}: {described}"),
        };
        let lines: String = self.0.0.iter().map(line).collect();
        let text = "Starts something outside by a signed message, and gives the status and the beginning of the \
                    response. The triggers:";
        let text = format!("{text}{lines}");
        About::new(text)
            .open_world()
            .category("collaboration")
            .permission(Permission::External)
            .side_effect_scope("triggers")
    }

    async fn call(&self, context: &Context, input: TriggerInput) -> Result<Output, ToolError> {
        let Some(trigger) = self.0.0.get(&input.trigger) else {
            let known: Vec<&str> = self.0.0.keys().map(String::as_str).collect();
            let reason = format!("there is no trigger {:?}; there are: {}", input.trigger, known.join(", "));
            return Err(ToolError::bad_input("/trigger", reason));
        };
        let payload = Value::Object(input.payload).to_string();
        if payload.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("it has {} bytes, at most {PAYLOAD_BYTES_MAX} are sent", payload.len());
            return Err(ToolError::bad_input("/payload", reason));
        }
        let id = message_id(context);
        let (posted, tries) = tokio::select! {
            posted = post(trigger, &id, payload) => posted?,
            () = context.cancelled() => {
                return Err(ToolError::new("the call was stopped; the message may have been received"));
            }
        };
        let status = posted.status.as_u16();
        let body = posted.body.unwrap_or_default();
        let text = String::from_utf8_lossy(&body).into_owned();
        let excerpt = toolyard_tool::runtime::beginning(&text, EXCERPT_BYTES_MAX);
        Output::json(&json!({
            "accepted": posted.status.is_success(),
            "status": status,
            "body": excerpt,
            "body_is_cut": excerpt.len() < text.len(),
            "message_id": id,
            "tries": tries,
        }))
    }
}

/// The id of a call's message: the same whenever it is sent.
fn message_id(context: &Context) -> String {
    let digest = Sha256::digest(format!("{}/{}", context.run_id(), context.call_id()));
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("trg_{digits}")
}

/// Posts until there is a response that counts. A message is sent again if it was not received, if the receiver
/// requests it (429, 503), or if a second one does no harm there.
async fn post(trigger: &Trigger, id: &str, payload: String) -> Result<(Posted, u32), ToolError> {
    let (payload, mut pause) = (payload.into_bytes(), PAUSE);
    for tries in 1_u32.. {
        let at = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        let mut headers = sign::headers(&trigger.secrets, id, Timestamp(at), &payload);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        let key = HeaderValue::try_from(id).expect("letters and digits make a header");
        headers.insert("idempotency-key", key);
        let sent = trigger.address.try_post(headers, payload.clone().into(), ANSWER_BYTES_MAX);
        let (again, reason, wait) = match timeout(ANSWER_PATIENCE, sent).await {
            Ok(Ok(posted)) => {
                let is_asked = matches!(posted.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
                let again = is_asked || (trigger.is_idempotent && posted.status.is_server_error());
                if !again || tries >= TRIES_MAX {
                    return Ok((posted, tries));
                }
                (true, String::new(), retry_after(&posted.headers))
            }
            Ok(Err(error)) => (error.is_unsent || trigger.is_idempotent, error.reason, None),
            Err(_) => {
                let reason = format!("there was no response within {} s", ANSWER_PATIENCE.as_secs());
                (trigger.is_idempotent, reason, None)
            }
        };
        if !again {
            return Err(ToolError::new(format!(
                "the message may have been received: {reason}. Another call would send it again"
            )));
        }
        if tries >= TRIES_MAX {
            return Err(ToolError::new(format!("the message was not received, {tries} times: {reason}")));
        }
        sleep(wait.unwrap_or(pause).min(PAUSE_LONGEST)).await;
        pause *= 2;
    }
    unreachable!("the loop ends by its last try")
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}
