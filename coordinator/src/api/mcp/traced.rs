//! The span of a request, below the context that the client sent with it.

use telemetry::trace::{self, Kind, Moment, Span, SpanContext};

use super::message::Request;

/// A request that is traced. Its span ends when this is dropped.
#[derive(Debug)]
pub(super) struct Traced {
    /// Until the span has ended.
    span: Option<Span>,
    context: SpanContext,
    began: Moment,
}

impl Traced {
    /// The span of a request about a tool, if it is traced.
    pub(super) fn begin(request: &Request, tool: &str, version: &str) -> Option<Self> {
        if !trace::is_on() {
            return None;
        }
        let began = Moment::now(::nats::now().0);
        let name = || format!("{} {tool}", request.method).into();
        let span = match (&request.meta.traceparent, trace::current()) {
            (None, Some(current)) => Some(Span::below(current, 0, name(), Kind::Server, began.since_epoch())),
            (sent, _) => trace::begin(sent.as_deref(), Kind::Server, began.since_epoch(), name),
        };
        let span = span?
            .text("mcp.method.name", &request.method)
            .text("mcp.protocol.version", version)
            .text("jsonrpc.request.id", request.id.get().trim_matches('"'))
            .text("gen_ai.tool.name", tool)
            .text("gen_ai.operation.name", "execute_tool")
            .text("network.transport", "tcp");
        Some(Self { context: span.context(), span: Some(span), began })
    }

    /// The parent of what the request causes.
    pub(super) fn context(&self) -> SpanContext {
        self.context
    }

    /// The request has failed, for a reason of one word.
    pub(super) fn fail(&mut self, error: &str) {
        self.span = self.span.take().map(|span| span.failed(error));
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            span.end(self.began.later());
        }
    }
}
