//! The span of a request, below the context that the client sent with it.

use telemetry::trace::{self, Kind, Moment, Span, SpanContext};

use super::message::Request;

/// A request that is traced.
#[derive(Debug)]
pub(super) struct Traced {
    span: Span,
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
        Some(Self { span, began })
    }

    /// The parent of what the request causes.
    pub(super) fn context(&self) -> SpanContext {
        self.span.context()
    }

    pub(super) fn end(self, error: Option<&str>) {
        let Self { span, began } = self;
        let span = match error {
            Some(error) => span.failed(error),
            None => span,
        };
        span.end(began.later());
    }
}
