"""Calls tools without a broker."""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._bridge import client_loop, wait
from .content import Content, Data, Json, Progress, Text, from_piece, to_json
from .context import Cancel, Decline

if TYPE_CHECKING:
    from typing_extensions import Self

    from .app import App

__all__ = ["CallError", "Called", "Running", "TestClient"]

#: Is given the question and the schema of its answer, and returns the answer, `Decline()` or `Cancel()`.
Answering = Callable[[str, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class CallError:
    """Why a call failed."""

    kind: str
    message: str
    retryable: bool = False
    retry_after: float | None = None
    violations: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Called:
    """A call that has ended."""

    output: list[Content | Progress]
    result: list[Content]
    error: CallError | None
    state: dict[str, Any]

    @property
    def text(self) -> str:
        """The text that was sent while the function ran, on all channels."""
        return "".join(piece.text for piece in self.output if isinstance(piece, Text))

    @property
    def value(self) -> Any:
        """The result: a text, a value, bytes, or a list of these. Raises if the call failed."""
        if self.error is not None:
            raise AssertionError(f"the call failed ({self.error.kind}): {self.error.message}")
        values = [_value(part) for part in self.result]
        return values[0] if len(values) == 1 else values


def _value(part: Content) -> Any:
    if isinstance(part, Text):
        return part.text
    return part.value if isinstance(part, Json) else part.data


class TestClient:
    """Calls the tools of an app without a broker; see :meth:`App.test_client`."""

    __test__ = False  # for pytest

    def __init__(
        self,
        app: App,
        *,
        context: Mapping[str, Any] | None,
        files: Mapping[str, bytes] | None,
        answer: Answering | None,
        requester: tuple[str | None, str | None],
        stored: bool,
    ) -> None:
        from ._execute import Runner

        tenant, caller = requester
        self._beside = to_json({"context": context, "tenant": tenant, "caller": caller, "unstored": not stored})
        self._files = [(name, bytes(data)) for name, data in (files or {}).items()]
        self._answer = answer
        self._runner = Runner(app)
        self._runner.open()
        self._close = weakref.finalize(self, self._runner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the app's resources."""
        self._close()

    def call(self, tool: str, /, **arguments: Any) -> Called:
        """Calls a tool and waits for its end."""
        return self.start(tool, **arguments).end()

    async def acall(self, tool: str, /, **arguments: Any) -> Called:
        """As :meth:`call`, in async tests."""
        return await self.start(tool, **arguments).aend()

    def start(self, tool: str, /, **arguments: Any) -> Running:
        """Calls a tool, to watch or cancel it on its way."""
        return self.start_with(tool, arguments)

    def start_with(self, tool: str, arguments: Mapping[str, Any] | str) -> Running:
        """As :meth:`start`, with the arguments as a mapping, or as the JSON that a model wrote."""
        from ._native import Running as NativeRunning

        text = arguments if isinstance(arguments, str) else to_json(arguments)
        answer = None if self._answer is None else self._answered
        native = NativeRunning.start(self._runner.table, (tool, text), self._beside, self._files, answer)
        return Running(self, native)

    def _answered(self, question: str) -> str:
        asked = json.loads(question)
        schema = asked.get("requestedSchema") or {}
        properties = schema.get("properties") or {}
        is_one = list(properties) == ["answer"]
        assert self._answer is not None
        answer = self._answer(asked["message"], properties["answer"] if is_one else schema)
        if isinstance(answer, (Decline, Cancel)):
            return json.dumps({"action": "decline" if isinstance(answer, Decline) else "cancel"})
        return to_json({"action": "accept", "content": {"answer": answer} if is_one else answer})


class Running:
    """A call on its way: iterate over its output, cancel it, and wait for its end."""

    def __init__(self, client: TestClient, native: Any) -> None:
        self._client = client  # kept alive while the call runs
        self._native = native

    def __iter__(self) -> Iterator[Content | Progress]:
        while (piece := client_loop().run(wait(self._native.next))) is not None:
            yield from_piece(*piece)

    async def __aiter__(self) -> AsyncIterator[Content | Progress]:
        while (piece := await wait(self._native.next)) is not None:
            yield from_piece(*piece)

    def cancel(self) -> None:
        """Requests the function to stop."""
        self._native.cancel()

    def end(self) -> Called:
        """Waits for the end; the output is what was not iterated over."""
        return client_loop().run(self.aend())

    async def aend(self) -> Called:
        """As :meth:`end`, in async tests."""
        output, parts, error, state = await wait(self._native.end)
        return Called(
            output=[from_piece(*piece) for piece in output],
            result=[_content(kind, payload) for kind, payload in parts or []],
            error=None if error is None else _error(json.loads(error)),
            state={key: json.loads(value) for key, value in state},
        )


def _content(kind: str, payload: Any) -> Content:
    content = from_piece(kind, "", payload)
    assert isinstance(content, (Text, Json, Data))
    return content


def _error(fields: dict[str, Any]) -> CallError:
    violations = [(path, message) for path, message in fields.pop("violations")]
    return CallError(**fields, violations=violations)
