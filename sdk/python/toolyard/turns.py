"""A model's message while its calls are executed: what was heard of them so far."""

from __future__ import annotations

import inspect
import json
import os
import reprlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .content import to_json
from .context import Decline
from .errors import RequestError
from .events import Ask, CallEnded, Ended, Event, NeedsAnswer, NeedsApproval, Opened, Other, read

if TYPE_CHECKING:
    from ._options import TurnOptions

#: `True` or other arguments approve a call, `False` or a reason rejects it, `None` leaves it open.
Decision: TypeAlias = "bool | Mapping[str, Any] | str | None"
#: Decides on a call. It may be an async function if the client is async; other clients raise a `TypeError` for one.
OnApproval: TypeAlias = "Callable[[NeedsApproval], Decision | Awaitable[Decision]]"
#: Answers a call or a question: with the answer, with `Decline()`, or with `None`, which leaves it open. As for
#: `OnApproval`, it may be async if the client is.
OnQuestion: TypeAlias = "Callable[[NeedsAnswer], Any]"
Form: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "gemini", "mcp"]
Floor: TypeAlias = Literal["arrival", "submission", "interleaved"]

#: Reasons of refusals of decisions and answers that come too late: sending them again cannot succeed.
_TOO_LATE = frozenset(
    {"CALL_ALREADY_ANSWERED", "CALL_ALREADY_DECIDED", "CALL_NOT_AWAITING_APPROVAL", "CALL_NOT_WAITING", "RUN_ENDED"}
)


@dataclass(frozen=True)
class Stored:
    """An object that was uploaded."""

    object_id: str
    media_type: str
    size: int


@dataclass(frozen=True)
class TurnResult:
    """What became of a model's calls."""

    #: What the model's SDK takes next: messages, items, or content, as its API has them.
    messages: list[Any]
    #: The ends of the calls, in the order of the message; calls that were refused as unreadable have none.
    results: list[CallEnded]
    #: Every call has an answer.
    complete: bool
    #: Calls and questions that wait for somebody. Decide on them or answer them, and ask for the result again.
    open: list[NeedsApproval | NeedsAnswer]
    run_id: str | None
    status: str


@dataclass
class TurnState:
    """The events of a turn so far."""

    ask: Ask
    call_ids: list[str] = field(default_factory=list)
    run_id: str = ""
    status: str = "in_progress"
    ends: dict[str, CallEnded] = field(default_factory=dict)
    open: dict[str, NeedsApproval | NeedsAnswer] = field(default_factory=dict)
    has_ended: bool = False
    last: int | None = None
    #: Events that were read and not handed out yet.
    queue: deque[Event] = field(default_factory=deque)

    def take(self, batch: bytes) -> list[Event]:
        """Reads the next events."""
        return [self._take(event) for event in json.loads(batch)]

    def _take(self, wire: dict[str, Any]) -> Event:
        event = read(wire, self.run_id, self._asked)
        self.last = event.sequence
        if isinstance(event, Opened):
            self.run_id = event.run_id
        elif isinstance(event, (NeedsApproval, NeedsAnswer)):
            self.open[event.call_id] = event
        elif isinstance(event, CallEnded):
            self.ends[event.call_id] = event
            self.open.pop(event.call_id, None)
        elif isinstance(event, Ended):
            self.status, self.has_ended = event.status, True
        elif isinstance(event, Other) and event.name == "run_status_changed":
            self.status = event.fields["status"].removeprefix("RUN_STATUS_").lower()
        elif isinstance(event, Other) and event.name in ("call_approved", "call_rejected"):
            self.open.pop(event.fields["call_id"], None)
        return event

    def _asked(self, name: str, fields: dict[str, Any]) -> Any:
        """Sends a decision or an answer. From then on nobody is waited for."""
        for it in [*fields.get("decisions", []), *fields.get("outputs", [])]:
            self.open.pop(it["call_id"], None)
        return self.ask(name, fields)

    @contextmanager
    def handing_out(self) -> Iterator[Event]:
        """The first event of the queue, which is removed once its callback has ended.

        If the callback fails, the event stays, so that the callback is called again. A decision that comes too late
        fails as well, but the event is removed, because no other attempt can succeed.
        """
        try:
            yield self.queue[0]
        except RequestError as error:
            if error.reason in _TOO_LATE:
                self.queue.popleft()
            raise
        self.queue.popleft()

    @property
    def waits(self) -> bool:
        """Nothing goes on before somebody acts."""
        return self.status == "requires_action" and bool(self.open)

    def result(self, answer: str) -> TurnResult:
        """The result so far; ``answer`` is that of the native part."""
        fields = json.loads(answer)
        ends = [self.ends[call_id] for call_id in self.call_ids if call_id in self.ends]
        waiting = list(self.open.values())
        return TurnResult(fields["messages"], ends, fields["complete"], waiting, self.run_id or None, self.status)


def require_blocking(options: TurnOptions) -> None:
    """Raises a `TypeError` if a callback is an async function, which only an async client can await."""
    for name in ("on_approval", "on_question"):
        callback = options.get(name)
        called = inspect.getattr_static(callback, "__call__", None)
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called):
            raise TypeError(f"{name} is an async function {_UNAWAITED}")


def consult_blocking(event: Event, options: TurnOptions) -> Any:
    """As :func:`consult`, for a client that cannot await."""
    returned = consult(event, options)
    if not inspect.isawaitable(returned):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()
    name = "on_approval" if isinstance(event, NeedsApproval) else "on_question"
    raise TypeError(f"{name} returned an awaitable {_UNAWAITED}")


_UNAWAITED = "and this client cannot await it: use AsyncClient, or a function that is not async"


def consult(event: Event, options: TurnOptions) -> Any:
    """Calls the callback for an event and returns its decision or answer, or an awaitable of it; `None` without one."""
    callback: Callable[[Any], Any] | None = None
    if isinstance(event, NeedsApproval):
        callback = options.get("on_approval")
    elif isinstance(event, NeedsAnswer):
        callback = options.get("on_question")
    return None if callback is None else callback(event)


def send(event: Event, returned: Any) -> Any:
    """Sends the decision or the answer of a callback. With an async client the request is awaited.

    Only `True` and arguments approve a call: any other value that is no decision is a `TypeError`.
    """
    if returned is None:
        return None
    if isinstance(event, NeedsAnswer):
        return event.decline() if isinstance(returned, Decline) else event.answer(returned)
    assert isinstance(event, NeedsApproval)
    if returned is True:
        return event.approve()
    if isinstance(returned, Mapping):
        return event.approve(returned)
    if returned is False:
        return event.reject()
    if isinstance(returned, str):
        return event.reject(returned)
    raise TypeError(
        f"on_approval returned {reprlib.repr(returned)} for {event.tool}: return True or arguments to approve the "
        "call, False or a reason to reject it, or None to leave it open"
    )


def message_json(message: Any) -> bytes:
    """A model's message as JSON: the object of its SDK, a dict, a list of streamed events, or JSON itself."""
    if isinstance(message, (bytes, bytearray)):
        return bytes(message)
    if isinstance(message, str):
        return message.encode()
    return json.dumps(_plain(message)).encode()


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping):
        return {key: _plain(it) for key, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(it) for it in value]
    return json.loads(to_json(value))


def run_options(options: TurnOptions, files: Sequence[Mapping[str, str]]) -> bytes:
    """The run of a turn without its calls, as the API's JSON."""
    run: dict[str, Any] = {**options.get("extra", {}), "request_id": options.get("key", ""), "files": list(files)}
    if (context := options.get("context")) is not None:
        run["context"] = to_json(context)
    if (timeout := options.get("timeout")) is not None:
        run["timeout"] = f"{timeout:.3f}s"
    if (confirmation := options.get("confirmation")) is not None:
        run["rules"] = {**run.get("rules", {}), "confirmation": f"CONFIRMATION_{confirmation.upper()}"}
    if (priority := options.get("priority")) is not None:
        run["rules"] = {**run.get("rules", {}), "priority": f"PRIORITY_{priority.upper()}"}
    for name in ("tools", "approve", "tenant", "store"):
        if (value := options.get(name)) is not None:
            run[name] = list(value) if isinstance(value, (list, tuple)) else value
    return json.dumps(run).encode()


def read_file(file: bytes | str | os.PathLike[str]) -> bytes:
    """The bytes of a file that is given as such or by its path."""
    if isinstance(file, bytes):
        return file
    with open(file, "rb") as opened:
        return opened.read()
