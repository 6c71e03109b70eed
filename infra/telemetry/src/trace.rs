//! Spans, and how a trace goes on from one process to the next: as a W3C `traceparent`, which a call carries among its
//! metadata in the log, so that it survives a redelivery and another owner.
//!
//! A span is recorded when it has ended. Most spans are made from the log, with ids that are derived from the run's and
//! the attempt's ids, so that processes need not pass them on. Unsampled work has no [`SpanContext`] and costs nothing;
//! the same holds for all work while tracing is off.
//!
//! A span of the OpenTelemetry SDK begins and ends in one process, and a call's life does not. So ended spans are given
//! to the SDK's batch processor as data; the SDK samples, batches and exports them.

use std::borrow::Cow;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use opentelemetry::trace::{
    FutureExt as _, Link, SpanContext as Remote, SpanId, Status, TraceContextExt as _, TraceFlags,
};
use opentelemetry::trace::{TraceId, TraceState, WithContext};
use opentelemetry::{Context, InstrumentationScope, Key, KeyValue};
use opentelemetry_sdk::trace::{BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, Sampler, ShouldSample as _};
use opentelemetry_sdk::trace::{SamplingDecision, SpanData, SpanProcessor as _};
use opentelemetry_semantic_conventions::attribute::ERROR_TYPE;

use crate::metrics::Counter;

pub use opentelemetry::trace::SpanKind as Kind;

/// Under which name a request's header and a call's metadata hold the context.
pub const TRACEPARENT: &str = "traceparent";

/// A span that is sampled: the parent of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    trace: TraceId,
    span: SpanId,
}

impl SpanContext {
    /// The context of a `traceparent`; `None` if it is malformed or not sampled.
    #[must_use]
    pub fn sampled(traceparent: &str) -> Option<Self> {
        parse(traceparent).and_then(|(context, sampled)| sampled.then_some(context))
    }

    #[must_use]
    pub fn traceparent(self) -> String {
        format!("00-{}-{}-01", self.trace, self.span)
    }

    /// The trace's id, in 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(self) -> String {
        self.trace.to_string()
    }

    /// A span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self { span: SpanId::from(span.max(1)), ..self }
    }

    fn to_sdk(self) -> Remote {
        Remote::new(self.trace, self.span, TraceFlags::SAMPLED, false, TraceState::NONE)
    }
}

/// The context, and whether it is sampled. Of a version that is not known yet its first four fields count. The SDK's
/// own reader is not used, because it accepts ids that are too short.
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
    Some((SpanContext { trace: TraceId::from(trace), span: SpanId::from(span) }, flags & 1 == 1))
}

/// The span of a call. It is derived from the run's id and the call's index, so every process computes the same.
#[must_use]
pub fn call_span(run: [u8; 16], call: u16) -> u64 {
    let [_, _, _, _, _, _, _, _, random @ ..] = run;
    // Calls of a run are distinguished by an odd factor, so that their ids are not close to those of another run.
    u64::from_be_bytes(random).wrapping_add((u64::from(call) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

pub(crate) struct Tracing {
    pub(crate) processor: BatchSpanProcessor,
    pub(crate) sampler: Sampler,
    /// Spans that were given to the processor and not yet by it to the exporter.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// As many as the processor's queue holds, so that the spans which it would drop uncounted are counted here.
    pub(crate) waiting_max: usize,
    pub(crate) dropped: Counter,
}

static TRACING: OnceLock<Tracing> = OnceLock::new();

pub(crate) fn turn_on(tracing: Tracing) -> bool {
    TRACING.set(tracing).is_ok()
}

pub(crate) fn tracing() -> Option<&'static Tracing> {
    TRACING.get()
}

/// Whether anything is traced at all. Cheap: check it before anything that costs more.
#[must_use]
pub fn is_on() -> bool {
    TRACING.get().is_some()
}

/// Begins the span of a request that comes in with this `traceparent` or none; `None` if it is not traced.
#[must_use]
pub fn begin(
    traceparent: Option<&str>,
    kind: Kind,
    start: Duration,
    name: impl FnOnce() -> Cow<'static, str>,
) -> Option<Span> {
    let tracing = TRACING.get()?;
    let ids = RandomIdGenerator::default();
    let parent = traceparent.and_then(parse);
    let trace = parent.map_or_else(|| ids.new_trace_id(), |(parent, _)| parent.trace);
    is_sampled(&tracing.sampler, parent, trace).then(|| {
        let context = SpanContext { trace, span: ids.new_span_id() };
        let mut span = Span::new(context, name(), kind, start);
        if let Some((parent, _)) = parent {
            (span.data.parent_span_id, span.data.parent_span_is_remote) = (parent.span, true);
        }
        span
    })
}

fn is_sampled(sampler: &Sampler, parent: Option<(SpanContext, bool)>, trace: TraceId) -> bool {
    let parent = parent.map(|(parent, is_sampled)| {
        let flags = TraceFlags::default().with_sampled(is_sampled);
        let parent = Remote::new(parent.trace, parent.span, flags, true, TraceState::NONE);
        Context::new().with_remote_span_context(parent)
    });
    let result = sampler.should_sample(parent.as_ref(), trace, "", &Kind::Server, &[], &[]);
    result.decision == SamplingDecision::RecordAndSample
}

/// The span of the request that is being served here, if it is traced.
#[must_use]
pub fn current() -> Option<SpanContext> {
    Context::map_current(|context| {
        let span = context.span();
        let found = span.span_context();
        found.is_sampled().then(|| SpanContext { trace: found.trace_id(), span: found.span_id() })
    })
}

/// Runs `future` within this span.
pub fn scope<F: Future>(context: SpanContext, future: F) -> WithContext<F> {
    future.with_context(Context::new().with_remote_span_context(context.to_sdk()))
}

/// As [`scope`], for synchronous work or one poll.
pub fn poll_within<T>(context: SpanContext, poll: impl FnOnce() -> T) -> T {
    let _entered = Context::new().with_remote_span_context(context.to_sdk()).attach();
    poll()
}

/// A moment of the common clock, with the finer monotonic clock for durations from it.
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

    /// The present time of the same clock.
    #[must_use]
    pub fn later(&self) -> Duration {
        self.since_epoch + self.here.elapsed()
    }
}

/// A span with its attributes. It is exported when [`Span::end`] is called. Times are counted from 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    data: SpanData,
}

impl Span {
    fn new(context: SpanContext, name: Cow<'static, str>, kind: Kind, start: Duration) -> Self {
        let start = UNIX_EPOCH + start;
        let data = SpanData {
            span_context: context.to_sdk(),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: kind,
            name,
            start_time: start,
            end_time: start,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("toolyard").build(),
        };
        Self { data }
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
        let context = match id {
            0 => SpanContext { span: RandomIdGenerator::default().new_span_id(), ..parent },
            id => parent.with_span(id),
        };
        let mut span = Self::new(context, name.into(), kind, start);
        span.data.parent_span_id = parent.span;
        span
    }

    /// The parent of spans below it.
    #[must_use]
    pub fn context(&self) -> SpanContext {
        let context = &self.data.span_context;
        SpanContext { trace: context.trace_id(), span: context.span_id() }
    }

    #[must_use]
    pub fn text(mut self, key: impl Into<Key>, value: impl ToString) -> Self {
        self.data.attributes.push(KeyValue::new(key, value.to_string()));
        self
    }

    #[must_use]
    pub fn number(mut self, key: &'static str, value: impl TryInto<i64>) -> Self {
        self.data.attributes.push(KeyValue::new(key, value.try_into().unwrap_or(i64::MAX)));
        self
    }

    /// Links it to a span of another trace.
    #[must_use]
    pub fn linked(mut self, other: SpanContext) -> Self {
        self.data.links.links.push(Link::new(other.to_sdk(), Vec::new(), 0));
        self
    }

    /// Marks it as failed; the error type is one word of a small set.
    #[must_use]
    pub fn failed(mut self, error_type: impl ToString) -> Self {
        self.data.status = Status::error("");
        self.text(ERROR_TYPE, error_type)
    }

    /// Hands it to the exporter. Never waits: a span that finds the queue full is dropped and counted.
    pub fn end(mut self, end: Duration) {
        let Some(tracing) = TRACING.get() else { return };
        self.data.end_time = self.data.start_time.max(UNIX_EPOCH + end);
        if tracing.waiting.fetch_add(1, Relaxed) < tracing.waiting_max {
            tracing.processor.on_end(self.data);
        } else {
            tracing.waiting.fetch_sub(1, Relaxed);
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
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(0.25)));
        let context = SpanContext::sampled(CALLER).expect("it is well formed");
        let (high, low) = (TraceId::from(u128::MAX), TraceId::from(1));
        assert!(is_sampled(&sampler, Some((context, true)), high));
        assert!(!is_sampled(&sampler, Some((context, false)), low));
        let taken = (0..64_u128).filter(|part| is_sampled(&sampler, None, TraceId::from(part << 58))).count();
        assert_eq!(taken, 16);
        assert!(!is_sampled(&Sampler::AlwaysOff, Some((context, true)), context.trace));
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
