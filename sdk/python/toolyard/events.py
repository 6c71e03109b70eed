"""The events of a run, in their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .content import Content, Json, Progress, Text, from_wire, to_wire

__all__ = [
    "CallEnded",
    "Ended",
    "Event",
    "NeedsAnswer",
    "NeedsApproval",
    "Opened",
    "Other",
    "Output",
    "Reported",
    "Withdrawn",
]

#: Sends a request of a name; returns nothing of use. Awaited by async clients, done at once by others.
Ask = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Opened:
    """The run was accepted: from now on each of its calls ends exactly once."""

    sequence: int
    run_id: str
    call_ids: list[str]


@dataclass(frozen=True)
class Output:
    """A piece of a call's output."""

    sequence: int
    call_id: str
    attempt: int
    content: Content
    channel: str = ""

    @property
    def text(self) -> str:
        """The piece as text; empty if it is bytes."""
        if isinstance(self.content, Text):
            return self.content.text
        return json.dumps(self.content.value) if isinstance(self.content, Json) else ""


@dataclass(frozen=True)
class Reported:
    """The progress of a call."""

    sequence: int
    call_id: str
    progress: Progress


@dataclass(frozen=True)
class Withdrawn:
    """The call's output so far is void: another attempt starts over."""

    sequence: int
    call_id: str
    attempt: int


@dataclass(frozen=True)
class NeedsApproval:
    """A call is not executed before it is approved."""

    sequence: int
    call_id: str
    tool: str
    arguments: dict[str, Any]
    run_id: str = field(repr=False)
    _ask: Ask = field(repr=False, compare=False)

    def approve(self, arguments: Mapping[str, Any] | None = None) -> Any:
        """Has it executed, with other arguments if they are given. Awaited with an async client."""
        return self._decide({"approve": {} if arguments is None else {"arguments": json.dumps(arguments)}})

    def reject(self, reason: str = "") -> Any:
        """Has it not executed; the model reads the reason. Awaited with an async client."""
        return self._decide({"reject": {"reason": reason}})

    def _decide(self, decision: dict[str, Any]) -> Any:
        decisions = [{"call_id": self.call_id, **decision}]
        return self._ask("decide", {"run_id": self.run_id, "decisions": decisions})


@dataclass(frozen=True)
class NeedsAnswer:
    """A call, or a question of a running call, that only the client can answer."""

    sequence: int
    call_id: str
    tool: str
    arguments: dict[str, Any]
    #: The running call that asks; `None` for a call of the model.
    asked_by: str | None
    run_id: str = field(repr=False)
    _ask: Ask = field(repr=False, compare=False)

    @property
    def question(self) -> str:
        """The question of a running call."""
        return str(self.arguments.get("message", ""))

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the answer to a question."""
        found: dict[str, Any] = self.arguments.get("requestedSchema") or {}
        return found

    def answer(self, value: Any) -> Any:
        """Answers: with content for a call of the model, with the value for a question."""
        if self.asked_by is None:
            return self._submit({"result": to_wire(value)})
        properties = list(self.schema.get("properties") or {})
        content = value if isinstance(value, Mapping) or len(properties) != 1 else {properties[0]: value}
        return self._reply({"action": "accept", "content": content})

    def decline(self) -> Any:
        """The person refused to answer the question."""
        return self._reply({"action": "decline", "content": None})

    def fail(self, reason: str) -> Any:
        """The client cannot answer; the model reads the reason."""
        return self._submit({"error": reason})

    def _reply(self, reply: dict[str, Any]) -> Any:
        return self._submit({"result": to_wire(Json(reply))})

    def _submit(self, output: dict[str, Any]) -> Any:
        outputs = [{"call_id": self.call_id, **output}]
        return self._ask("submit", {"run_id": self.run_id, "outputs": outputs})


@dataclass(frozen=True)
class CallEnded:
    """A call has ended: ``state`` is ``completed``, ``failed``, ``cancelled`` or ``expired``."""

    sequence: int
    call_id: str
    tool: str
    state: str
    result: list[Content]
    error: str | None = None
    error_kind: str | None = None

    @property
    def value(self) -> Any:
        """The result: a text, a value, bytes, or a list of these; ``None`` if it did not complete."""
        values = [
            it.text if isinstance(it, Text) else it.value if isinstance(it, Json) else it.data for it in self.result
        ]
        return (values[0] if len(values) == 1 else values) if self.state == "completed" else None


@dataclass(frozen=True)
class Ended:
    """The run has ended: ``status`` is ``completed``, ``cancelled``, ``expired`` or ``failed``."""

    sequence: int
    status: str


@dataclass(frozen=True)
class Other:
    """Any other event, by its name in the API."""

    sequence: int
    name: str
    fields: dict[str, Any]


Event: TypeAlias = "Opened | Output | Reported | Withdrawn | NeedsApproval | NeedsAnswer | CallEnded | Ended | Other"


def read(event: dict[str, Any], run_id: str, ask: Ask) -> Event:
    """Reads an event of the API."""
    sequence = int(event.pop("sequence", 0))
    event.pop("time", None)
    nothing: dict[str, Any] = {}
    name, fields = next(((name, value) for name, value in event.items() if value is not None), ("", nothing))
    if name == "run_opened":
        return Opened(sequence, fields["run_id"], [call["call_id"] for call in fields["calls"]])
    if name == "call_output":
        return _output(sequence, fields)
    if name == "call_output_withdrawn":
        return Withdrawn(sequence, fields["call_id"], fields["attempt"])
    if name == "call_awaiting_approval":
        arguments = _arguments(fields["arguments"])
        return NeedsApproval(sequence, fields["call_id"], fields["tool"], arguments, run_id, ask)
    if name == "call_waiting":
        asked_by = fields.get("asked_by_call_id") or None
        arguments = _arguments(fields["arguments"])
        return NeedsAnswer(sequence, fields["call_id"], fields["tool"], arguments, asked_by, run_id, ask)
    if name == "call_ended":
        return _ended(sequence, fields)
    if name == "run_ended":
        return Ended(sequence, _word(fields["status"], "RUN_STATUS_"))
    return Other(sequence, name, fields)


def _output(sequence: int, fields: dict[str, Any]) -> Event:
    progress = fields.get("progress")
    if progress is not None:
        reported = Progress(progress["done"], progress.get("total"), progress.get("message", ""))
        return Reported(sequence, fields["call_id"], reported)
    channel = fields.get("channel", "")
    content = from_wire(fields.get("content") or {}, channel)
    return Output(sequence, fields["call_id"], fields["attempt"], content, channel)


def _ended(sequence: int, fields: dict[str, Any]) -> CallEnded:
    outcome = fields.get("outcome") or {}
    error = outcome.get("error")
    message = (error or {}).get("message") or outcome.get("reason") or None
    kind = _word(error["kind"], "CALL_ERROR_KIND_").upper() if error else None
    result = [from_wire(content) for content in outcome.get("result") or []]
    state = _word(outcome.get("state", ""), "CALL_STATE_")
    return CallEnded(sequence, fields["call_id"], fields.get("tool", ""), state, result, message, kind)


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = None
    # A tool of the request may take a text.
    return arguments if isinstance(arguments, dict) else {"input": text}
