"""The errors of tools and of requests."""

from __future__ import annotations

import json
from typing import Any

__all__ = [
    "BadInput",
    "Cancelled",
    "DefinitionError",
    "ModelRetry",
    "NeedsInput",
    "RateLimited",
    "RequestError",
    "Retry",
    "ToolError",
]


class ToolError(Exception):
    """A tool failed; the model reads the message. Another attempt would fail as well."""

    kind = "tool_failed"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.after: float | None = None
        self.violations: list[tuple[str, str]] = []


class Retry(ToolError):
    """Another attempt may succeed. It is made if the tool is safe to repeat and has attempts left.

    ``after`` is the shortest wait before it, in seconds, at most an hour.
    """

    retryable = True

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class RateLimited(Retry):
    """A service that the tool uses limits its rate. As :class:`Retry`, with a kind of its own."""

    kind = "rate_limited"

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message, after)


class ModelRetry(ToolError):
    """The model should call again with other arguments; the message explains how."""

    kind = "model_retry"


class NeedsInput(ToolError):
    """The tool needs something from the caller first: a login, a file, a consent. The message names it."""

    kind = "needs_input"


class BadInput(ToolError):
    """An argument fits its schema and is of no use all the same.

    ``path`` is a JSON pointer to it, as ``/name`` or ``/points/3/x``, or empty for all arguments together.
    """

    kind = "arguments_invalid"

    def __init__(self, path: str, message: str) -> None:
        place = f"at {path}: " if path else ""
        super().__init__(f"the arguments are of no use: {place}{message}")
        self.violations = [(path, message)]


class Cancelled(BaseException):
    """The call should stop, so its function cannot send output any more. Do not catch it, except to clean up.

    An async function is stopped by ``asyncio.CancelledError`` instead.
    """


class DefinitionError(TypeError):
    """A function cannot be a tool. The message names the function and the parameter."""


class RequestError(Exception):
    """A request to the coordinator failed.

    ``kind`` is ``refused``, ``unreachable``, ``settings``, ``malformed`` or ``run_unknown``. A refusal has the stable
    ``reason`` of docs/reference/reasons.md, such as ``RUN_NOT_FOUND``, and the gRPC ``code``.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.kind: str = details.get("kind") or "refused"
        self.reason: str | None = details.get("reason")
        self.code: str | None = details.get("code")
        self.retry_after: float | None = details.get("retry_after")
        self.run_id: str | None = details.get("run_id")


def from_native(error: str) -> Exception:
    """The exception for an error of the native part."""
    details: dict[str, Any] = json.loads(error)
    message = str(details.pop("message"))
    kind = details.get("kind")
    if kind == "needs_input":
        return NeedsInput(message)
    if kind == "retry":
        return Retry(message)
    if kind == "tool":
        return ToolError(message)
    return RequestError(message, **details)
