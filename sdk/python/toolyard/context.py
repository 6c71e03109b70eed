"""The context of a call: what it knows of itself, and how it speaks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from ._bridge import Pending, pending, settled
from .content import to_json, to_piece
from .errors import Cancelled

if TYPE_CHECKING:
    import concurrent.futures

    from ._native import Call

__all__ = ["Accepted", "Answer", "Cancel", "Context", "Decline", "File"]

T = TypeVar("T")
FILE_BYTES_MAX = 256 * 1024 * 1024
_ONE = "answer"
_log = logging.getLogger("toolyard.call")


@dataclass(frozen=True)
class File:
    """A file that the call may open."""

    name: str
    media_type: str
    size: int


@dataclass(frozen=True)
class Accepted(Generic[T]):
    """The person answered."""

    value: T


@dataclass(frozen=True)
class Decline:
    """The person refused."""


@dataclass(frozen=True)
class Cancel:
    """The person dismissed the question without a choice."""


Answer: TypeAlias = "Accepted[T] | Decline | Cancel"


class Context:
    """What a call knows of itself, and how it speaks.

    A tool gets it in the parameter that has this type; it is not part of the tool's schema. The methods that send or
    ask are awaited in async functions. In functions that are not async they block, and :meth:`Pending.result` has the
    answer.
    """

    def __init__(self, call: Call, blocking: bool) -> None:
        self._call = call
        self._blocking = blocking

    @property
    def run(self) -> str:
        """The run's id."""
        return self._call.run_id

    @property
    def call(self) -> str:
        """The caller's id of the call, usually the model's."""
        return self._call.call_id

    @property
    def tool(self) -> str:
        """The name under which the tool was called."""
        return self._call.tool

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._call.attempt

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this call, and for no other call."""
        return f"{self._call.run_id}/{self._call.call_id}"

    @property
    def tenant(self) -> str | None:
        """The tenant of the run. A coordinator that authenticates callers vouches for it."""
        return self._call.tenant

    @property
    def caller(self) -> str | None:
        """The caller who opened the run, as the coordinator authenticated it; ``None`` if it authenticates nobody."""
        return self._call.caller

    @property
    def roles(self) -> list[str]:
        """The roles that the caller had when the run was opened."""
        return self._call.roles

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata from the caller, which the model neither sees nor sets."""
        found: dict[str, str] = json.loads(self._call.metadata())
        return found

    @property
    def continue_from(self) -> int:
        """Pieces of output of earlier attempts, after which this one continues; 0 unless the tool is to continue."""
        return self._call.continue_from

    @property
    def is_stored(self) -> bool:
        """Whether the run is stored. If not, a tool should leave nothing of the call elsewhere either."""
        return self._call.is_stored

    @property
    def seconds_left(self) -> float:
        """Seconds until the attempt must have ended. They do not pass while the tool waits for an answer."""
        return self._call.seconds_left()

    @property
    def deadline(self) -> float:
        """When the attempt must have ended, by ``time.monotonic()``."""
        return time.monotonic() + self._call.seconds_left()

    @property
    def call_deadline(self) -> float:
        """When the call must have ended, whichever attempt it is in, by ``time.monotonic()``."""
        return time.monotonic() + self._call.call_seconds_left()

    @property
    def cancelled(self) -> bool:
        """Whether the call should stop. A function that blocks looks at it; an async one is stopped by itself."""
        return self._call.cancelled

    def check(self) -> None:
        """Raises :class:`Cancelled` if the call should stop."""
        if self._call.cancelled:
            raise Cancelled("the call should stop")

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs with the ids of the run and the call as fields."""
        ids = {"run_id": self.run, "call_id": self.call, "attempt": self.attempt}
        return logging.LoggerAdapter(_log, ids)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Calls of the run that ended before; empty unless the tool has ``TOOL_CALL_HISTORY`` in ``context_keys``."""
        calls: list[dict[str, Any]] = json.loads(self._call.history())
        return calls

    def given(self, key: str, default: Any = None) -> Any:
        """The caller's value for a key of the tool's ``context_keys``; the model does not see it."""
        value = self._call.given(key)
        return default if value is None else json.loads(value)

    @property
    def files(self) -> list[File]:
        """The files that the call may open."""
        return [File(*file) for file in self._call.files()]

    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> Pending[bytes]:
        """The bytes of a file; an error if it has more than that."""
        return self._ready(pending(lambda done: self._call.read(name, bytes_max, done)))

    def send(self, piece: Any, channel: str = "") -> Pending[None]:
        """Sends a piece of output: text, bytes, :class:`Image`, :class:`Progress`, or a value that becomes JSON.

        Waits while the broker is slower than the tool.
        """
        kind, own, payload = to_piece(piece)
        return self.send_raw(kind, channel or own, payload)

    def progress(self, done: float, total: float | None = None, message: str = "") -> Pending[None]:
        """Reports the progress of the call, in units of its own."""
        return self.send_raw("progress", "", (float(done), None if total is None else float(total), message))

    def send_raw(self, kind: str, channel: str, payload: object) -> Pending[None]:
        """As :meth:`send`, for a piece that is converted."""
        try:
            if self._call.say(kind, channel, payload):
                return _SENT
            if self._blocking:
                self._call.say_blocking(kind, channel, payload)
                return _SENT
        except RuntimeError as error:
            if self._call.cancelled:
                raise Cancelled(str(error)) from None
            raise
        return pending(lambda done: self._call.say_later(kind, channel, payload, done))

    @overload
    def ask(self, question: str, *, timeout: float | None = None) -> Pending[Answer[str]]: ...
    @overload
    def ask(self, question: str, *, options: Sequence[str], timeout: float | None = None) -> Pending[Answer[str]]: ...
    @overload
    def ask(self, question: str, *, type: type[T], timeout: float | None = None) -> Pending[Answer[T]]: ...

    def ask(
        self,
        question: str,
        *,
        options: Sequence[str] | None = None,
        type: Any = None,
        timeout: float | None = None,
    ) -> Pending[Any]:
        """Asks the client of the call, where a person or a program answers.

        The answer is a text, one of ``options``, or a value of ``type``. Without a ``timeout`` (seconds) it waits for
        as long as the call may take. Meanwhile the attempt's own timeouts rest.
        """
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(str if type is None else type)
        schema = {"type": "string", "enum": list(options)} if options else adapter.json_schema()
        is_one = schema.get("type") != "object"
        if is_one:
            schema = {"type": "object", "properties": {_ONE: schema}, "required": [_ONE]}

        def read(answer: str) -> Any:
            reply = json.loads(answer)
            if reply["action"] != "accept":
                return Decline() if reply["action"] == "decline" else Cancel()
            content = reply["content"]
            return Accepted(adapter.validate_python(content[_ONE] if is_one else content))

        asked = pending(lambda done: self._call.ask(question, to_json(schema), timeout, done))
        return self._ready(_then(asked, read))

    def _ready(self, answer: Pending[T]) -> Pending[T]:
        if self._blocking:
            answer.result()
        return answer


_SENT: Pending[None] = settled(None)


def _then(first: Pending[Any], convert: Any) -> Pending[Any]:
    from concurrent.futures import Future

    converted: Future[Any] = Future()

    def done(future: concurrent.futures.Future[Any]) -> None:
        if not converted.set_running_or_notify_cancel():
            return
        try:
            converted.set_result(convert(future.result()))
        except BaseException as error:  # it is the answer's
            converted.set_exception(error)

    first._future.add_done_callback(done)
    converted.add_done_callback(lambda ended: first._future.cancel() if ended.cancelled() else None)
    return Pending(converted)
