//! Notifications about a call's progress. Their number must increase and their rate is limited. The protocol has no
//! place for output of a running call, so output is shown as the message of its progress.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Number, Value, json};
use tokio::time::Instant;

/// Notifications that may follow each other immediately.
const BURST: u32 = 20;
/// The pause after which one more may be sent.
const PAUSE: Duration = Duration::from_millis(100);
/// Output is collected for this long.
const OUTPUT_PAUSE: Duration = Duration::from_millis(250);
/// Bytes of output in a message: the latest.
const OUTPUT_MAX: usize = 1024;

/// The progress of one call, as its client receives it.
#[derive(Debug)]
pub(super) struct Progress {
    token: Box<RawValue>,
    /// The number in the last notification.
    last: Option<f64>,
    /// Whether the tool reports progress itself.
    is_reported: bool,
    output_bytes: u64,
    waiting: Option<Update>,
    /// Notifications that may be sent now, as of `filled`.
    left: u32,
    filled: Instant,
    /// When what is waiting may be sent.
    due: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Update {
    done: f64,
    total: Option<f64>,
    message: String,
}

impl Progress {
    pub(super) fn new(token: Box<RawValue>, now: Instant) -> Self {
        let (last, is_reported, output_bytes, waiting, due) = (None, false, 0, None, None);
        Self { token, last, is_reported, output_bytes, waiting, left: BURST, filled: now, due }
    }

    pub(super) fn token(&self) -> &RawValue {
        &self.token
    }

    /// The tool reports progress.
    pub(super) fn report(&mut self, done: f64, total: Option<f64>, message: &str, now: Instant) -> Option<String> {
        self.is_reported = true;
        if !done.is_finite() || self.last.is_some_and(|last| done <= last) {
            return None;
        }
        self.waiting =
            Some(Update { done, total: total.filter(|total| total.is_finite()), message: message.to_owned() });
        let due = if self.may_send(now) { now } else { self.filled + PAUSE };
        self.due = Some(due);
        self.flush(now)
    }

    /// The tool sends output.
    pub(super) fn say(&mut self, text: &str, now: Instant) {
        self.output_bytes += text.len() as u64;
        let before = self.waiting.take();
        let (total, mut message) = before.map_or((None, String::new()), |update| (update.total, update.message));
        message.push_str(text);
        if message.len() > OUTPUT_MAX {
            let from = message.len() - OUTPUT_MAX;
            let from = (from..message.len()).find(|from| message.is_char_boundary(*from)).unwrap_or(from);
            message.drain(..from);
        }
        let done = if self.is_reported { self.last.unwrap_or(0.0).next_up() } else { bytes(self.output_bytes) };
        self.waiting = Some(Update { done, total, message });
        self.due.get_or_insert(now + OUTPUT_PAUSE);
    }

    /// The tool reported progress, on a stream before this one.
    pub(super) fn was_reported(&mut self, done: f64) {
        self.is_reported = true;
        self.was_sent(done);
    }

    /// The tool sent output, on a stream before this one.
    pub(super) fn was_said(&mut self, text: &str) {
        self.output_bytes += text.len() as u64;
        self.was_sent(if self.is_reported { self.last.unwrap_or(0.0).next_up() } else { bytes(self.output_bytes) });
    }

    fn was_sent(&mut self, done: f64) {
        if done.is_finite() && self.last.is_none_or(|last| done > last) {
            self.last = Some(done);
        }
    }

    /// When a notification is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The notification that is due.
    pub(super) fn flush(&mut self, now: Instant) -> Option<String> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        if !self.may_send(now) {
            self.due = Some(self.filled + PAUSE);
            return None;
        }
        self.left -= 1;
        self.send()
    }

    /// What is waiting, because the call has ended.
    pub(super) fn end(&mut self) -> Option<String> {
        self.send()
    }

    fn send(&mut self) -> Option<String> {
        self.due = None;
        let Update { done, total, message } = self.waiting.take()?;
        self.last = Some(done);
        let token: Value = serde_json::from_str(self.token.get()).unwrap_or_default();
        let mut params = json!({ "progressToken": token, "progress": number(done) });
        if let Some(total) = total {
            params["total"] = number(total);
        }
        if !message.is_empty() {
            params["message"] = message.into();
        }
        Some(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string())
    }

    fn may_send(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_millis() / PAUSE.as_millis();
        if let Some(more) = u32::try_from(passed).ok().filter(|more| *more > 0) {
            self.left = self.left.saturating_add(more).min(BURST);
            self.filled = now;
        }
        self.left > 0
    }
}

fn bytes(output: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "only its order matters")]
    let bytes = output as f64;
    bytes
}

/// A whole number without a fraction, as clients write it.
fn number(value: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "it is checked to be whole and small")]
    let whole = value as i64;
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return whole.into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(now: Instant) -> Progress {
        Progress::new(RawValue::from_string("\"p\"".to_owned()).expect("it is JSON"), now)
    }

    fn of(notification: &str) -> Value {
        serde_json::from_str::<Value>(notification).expect("it is JSON")["params"].clone()
    }

    #[test]
    fn each_report_is_sent_until_there_are_too_many_and_then_the_latest() {
        let now = Instant::now();
        let mut progress = progress(now);
        let sent = progress.report(0.0, Some(100.0), "begins", now).expect("it is sent");
        assert_eq!(of(&sent), json!({ "progressToken": "p", "progress": 0, "total": 100, "message": "begins" }));
        for done in 1..BURST {
            assert!(progress.report(done.into(), None, "", now).is_some(), "{done}");
        }
        assert!(progress.report(50.0, None, "", now).is_none() && progress.report(51.5, None, "", now).is_none());
        let due = progress.due().expect("the latest is waiting");
        assert!(progress.flush(now).is_none() && due == now + PAUSE);
        assert_eq!(of(&progress.flush(due).expect("it is sent"))["progress"], 51.5);
        assert!(progress.report(51.0, None, "", due + PAUSE).is_none(), "it must increase");
    }

    #[test]
    fn output_is_collected_and_its_number_increases() {
        let now = Instant::now();
        let mut progress = progress(now);
        progress.say("one ", now);
        progress.say("two", now);
        assert!(progress.flush(now).is_none());
        let sent = progress.flush(now + OUTPUT_PAUSE).expect("it is sent");
        assert_eq!(of(&sent), json!({ "progressToken": "p", "progress": 7, "message": "one two" }));
        progress.say(&"ä".repeat(OUTPUT_MAX), now);
        let message = of(&progress.end().expect("it is waiting"))["message"].as_str().expect("a text").to_owned();
        assert!(message.len() <= OUTPUT_MAX && message.starts_with('ä'));
    }

    #[test]
    fn numbers_go_on_after_a_resumed_stream() {
        let now = Instant::now();
        let mut resumed = progress(now);
        resumed.was_said(&"x".repeat(5000));
        resumed.say("more", now);
        assert_eq!(of(&resumed.end().expect("it is waiting"))["progress"], 5004);
        let mut resumed = progress(now);
        resumed.was_reported(50.0);
        assert!(resumed.report(50.0, None, "", now).is_none(), "it was sent before");
        resumed.was_said("said");
        resumed.say("more", now);
        assert!(of(&resumed.end().expect("it is waiting"))["progress"].as_f64().is_some_and(|done| done > 50.0));
    }

    #[test]
    fn output_between_reports_does_not_overtake_them() {
        let now = Instant::now();
        let mut progress = progress(now);
        assert!(progress.report(1.0, None, "", now).is_some());
        progress.say("said", now);
        let sent = of(&progress.flush(now + OUTPUT_PAUSE).expect("it is sent"));
        assert!(sent["progress"].as_f64().is_some_and(|done| done > 1.0 && done < 1.1));
        assert!(progress.report(2.0, None, "", now + OUTPUT_PAUSE).is_some());
    }
}
