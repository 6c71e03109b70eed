//! Spans, and how a trace goes on from one process to the next: as a W3C `traceparent`, which a call carries among its
//! metadata in the log, so that it survives a redelivery and another owner.
//!
//! A span is written down when it has ended, by whoever knows how: most are made of what the log says, with ids that follow
//! from the run's and the attempt's, so that nobody has to hand them over. What is not sampled has no [`SpanContext`] and
//! costs nothing; while tracing is off nothing has.
//!
//! It is not the `tracing` crate's spans, because a call's life is in no process's stack, nor the OpenTelemetry SDK's,
//! whose spans have ids of its own making.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::metrics::Counter;

/// Under which name a request's header and a call's metadata hold the context.
pub const TRACEPARENT: &str = "traceparent";
/// Spans that may wait to be exported; what comes then is dropped and counted.
pub(crate) const WAITING_MAX: usize = 8192;

/// A span that is sampled, by which others hang themselves below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    trace: u128,
    span: u64,
}

impl SpanContext {
    /// The context that a `traceparent` names; `None` where it is malformed or not sampled.
    #[must_use]
    pub fn sampled(traceparent: &str) -> Option<Self> {
        parse(traceparent).and_then(|(context, sampled)| sampled.then_some(context))
    }

    #[must_use]
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    pub(crate) fn ids(self) -> (u128, u64) {
        (self.trace, self.span)
    }

    /// A span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self { span: span.max(1), ..self }
    }
}

/// The context, and whether it is sampled. Of a version that is not known yet its first four fields count.
fn parse(traceparent: &str) -> Option<(SpanContext, bool)> {
    let mut fields = traceparent.split('-');
    let mut hex = |digits: usize| {
        let field = fields.next()?;
        let well = field.len() == digits && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        well.then(|| u128::from_str_radix(field, 16).ok()).flatten()
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let more = fields.next().is_some();
    if version == 0xff || (version == 0 && more) || trace == 0 || span == 0 {
        return None;
    }
    let span = u64::try_from(span).ok()?;
    Some((SpanContext { trace, span }, flags & 1 == 1))
}

/// The span of a call: the same for whoever knows the run, by its bytes, and the call's place in it.
#[must_use]
pub fn call_span(run: [u8; 16], call: u16) -> u64 {
    let [_, _, _, _, _, _, _, _, random @ ..] = run;
    // Calls of a run are told apart by an odd factor, so that none of them is another run's neighbour.
    u64::from_be_bytes(random).wrapping_add((u64::from(call) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Which requests are traced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// Where the caller says whether, it has the last word.
    pub(crate) follows_caller: bool,
    /// The part of all others that is traced.
    pub(crate) ratio: f64,
}

impl Sampler {
    fn takes(&self, parent: Option<(SpanContext, bool)>, trace: u128) -> bool {
        match parent {
            Some((_, sampled)) if self.follows_caller => sampled,
            Some(_) | None if self.ratio >= 1.0 => true,
            // As the SDKs do it, so that all who sample by the same ratio take the same traces.
            Some(_) | None => ((trace as u64) >> 1) < (self.ratio * (1_u64 << 63) as f64) as u64,
        }
    }
}

pub(crate) struct Tracing {
    pub(crate) spans: mpsc::Sender<Span>,
    pub(crate) sampler: Sampler,
    pub(crate) dropped: Counter,
}

static TRACING: OnceLock<Tracing> = OnceLock::new();

pub(crate) fn turn_on(tracing: Tracing) -> bool {
    TRACING.set(tracing).is_ok()
}

/// Whether anything is traced at all. The first thing to ask where asking for more costs something.
#[must_use]
pub fn is_on() -> bool {
    TRACING.get().is_some()
}

/// Begins the span of a request that comes in with this `traceparent` or none; `None` where it is not traced.
#[must_use]
pub fn begin(
    traceparent: Option<&str>,
    kind: Kind,
    start: Duration,
    name: impl FnOnce() -> Cow<'static, str>,
) -> Option<Span> {
    let tracing = TRACING.get()?;
    let parent = traceparent.and_then(parse);
    let trace = parent.map_or_else(|| rand::random::<u128>().max(1), |(parent, _)| parent.trace);
    tracing.sampler.takes(parent, trace).then(|| {
        let context = SpanContext { trace, span: rand::random::<u64>().max(1) };
        Span { parent: parent.map(|(parent, _)| parent.span), ..Span::new(context, name(), kind, start) }
    })
}

tokio::task_local! {
    static CURRENT: SpanContext;
}

/// The span of the request that is being served here, where it is traced.
#[must_use]
pub fn current() -> Option<SpanContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// What `future` does is done for this span.
pub fn scope<F: Future>(context: SpanContext, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(context, future)
}

/// As [`scope`], for what is polled.
pub fn poll_within<T>(context: SpanContext, poll: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(context, poll)
}

/// A moment by a clock that others share, with a finer one of our own for what follows it.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    since_epoch: Duration,
    here: Instant,
}

impl Moment {
    /// Now, by a clock in milliseconds since 1970.
    #[must_use]
    pub fn now(unix_ms: u64) -> Self {
        Self { since_epoch: Duration::from_millis(unix_ms), here: Instant::now() }
    }

    #[must_use]
    pub fn since_epoch(&self) -> Duration {
        self.since_epoch
    }

    /// The present, told by the same clock.
    #[must_use]
    pub fn later(&self) -> Duration {
        self.since_epoch + self.here.elapsed()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Internal,
    Server,
    Producer,
    Consumer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

/// Something that took a time, with what is known of it. Seen by others once it is told by [`Span::end`]. Times are counted
/// from 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub(crate) context: SpanContext,
    pub(crate) parent: Option<u64>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) start: Duration,
    pub(crate) end: Duration,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) failed: bool,
}

impl Span {
    fn new(context: SpanContext, name: Cow<'static, str>, kind: Kind, start: Duration) -> Self {
        Self { context, parent: None, name, kind, start, end: start, attributes: Vec::new(), failed: false }
    }

    /// A span below another one, with an id of its own choice; 0 for any.
    #[must_use]
    pub fn below(
        parent: SpanContext,
        id: u64,
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        start: Duration,
    ) -> Self {
        let id = if id == 0 { rand::random::<u64>() } else { id };
        Self { parent: Some(parent.span), ..Self::new(parent.with_span(id), name.into(), kind, start) }
    }

    /// By which others hang themselves below it.
    #[must_use]
    pub fn context(&self) -> SpanContext {
        self.context
    }

    #[must_use]
    pub fn text(mut self, key: &'static str, value: impl ToString) -> Self {
        self.attributes.push((key, Value::Text(value.to_string())));
        self
    }

    #[must_use]
    pub fn number(mut self, key: &'static str, value: impl TryInto<i64>) -> Self {
        self.attributes.push((key, Value::Number(value.try_into().unwrap_or(i64::MAX))));
        self
    }

    /// It did not come to what it was for; in a word of a small set.
    #[must_use]
    pub fn failed(mut self, error_type: impl ToString) -> Self {
        self.failed = true;
        self.text("error.type", error_type)
    }

    /// Tells it. Never waits: what finds no room is dropped and counted.
    pub fn end(mut self, end: Duration) {
        let Some(tracing) = TRACING.get() else { return };
        self.end = end.max(self.start);
        if tracing.spans.try_send(self).is_err() {
            tracing.dropped.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_survives_its_way() {
        let context = SpanContext::sampled(CALLER).expect("it is well formed");
        assert_eq!(context.traceparent(), CALLER);
    }

    #[test]
    fn what_is_malformed_or_not_sampled_is_no_context() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(SpanContext::sampled(text), None, "{text:?}");
        }
        assert!(SpanContext::sampled("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
    }

    #[test]
    fn a_caller_decides_for_its_own_and_the_ratio_for_all_others() {
        let sampler = Sampler { follows_caller: true, ratio: 0.25 };
        let context = SpanContext::sampled(CALLER).expect("it is well formed");
        assert!(sampler.takes(Some((context, true)), u128::MAX) && !sampler.takes(Some((context, false)), 0));
        let taken = (0..64_u128).filter(|part| sampler.takes(None, part << 58)).count();
        assert_eq!(taken, 16);
        let alone = Sampler { follows_caller: false, ratio: 0.0 };
        assert!(!alone.takes(Some((context, true)), context.trace));
    }

    #[test]
    fn calls_of_a_run_have_spans_of_their_own_that_everybody_knows() {
        let run = *b"0123456789abcdef";
        let spans: std::collections::HashSet<u64> = (0..1000).map(|call| call_span(run, call)).collect();
        assert_eq!(spans.len(), 1000);
        assert_eq!(call_span(run, 7), call_span(run, 7));
    }

    #[test]
    fn while_it_is_off_nothing_is_traced() {
        assert!(!is_on() && begin(Some(CALLER), Kind::Server, Duration::ZERO, || "x".into()).is_none());
    }
}
