"""Tools of an app: functions that models call."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from .errors import DefinitionError

if TYPE_CHECKING:
    from ._schema import Signature
    from .resources import Resource
    from .testing import Answering, TestClient

__all__ = ["App"]

F = TypeVar("F", bound=Callable[..., Any])


class Kind(Enum):
    """How a function is executed."""

    ASYNC = "async function"
    ASYNC_STREAM = "async generator"
    BLOCKING = "function"
    BLOCKING_STREAM = "generator"

    @property
    def streams(self) -> bool:
        """Whether it yields its output."""
        return self in (Kind.ASYNC_STREAM, Kind.BLOCKING_STREAM)

    @property
    def blocks(self) -> bool:
        """Whether it needs a thread or a process."""
        return self in (Kind.BLOCKING, Kind.BLOCKING_STREAM)


def _kind(function: Callable[..., Any]) -> Kind:
    # Behind the decorators of others, which may be functions that only return what the inner one makes.
    inner = inspect.unwrap(plain(function))
    if inspect.isasyncgenfunction(inner):
        return Kind.ASYNC_STREAM
    if inspect.iscoroutinefunction(inner):
        return Kind.ASYNC
    return Kind.BLOCKING_STREAM if inspect.isgeneratorfunction(inner) else Kind.BLOCKING


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or method behind partial applications and objects that are called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004


class Tool:
    """A function that models call, and its description."""

    def __init__(
        self, function: Callable[..., Any], signature: Signature, about: dict[str, Any], process: bool
    ) -> None:
        self.function = function
        self.signature = signature
        self.kind = _kind(function)
        self.process = process
        if process and not self.kind.blocks:
            raise DefinitionError(f"tool {self.name}: process=True is for functions that are not async")
        if process and (signature.context or signature.uses):
            raise DefinitionError(
                f"tool {self.name}: a function in a process of its own has no Context and no resources"
            )
        keys = [*about.pop("context_keys"), *(key for key, _, _ in signature.given.values())]
        self.about = {
            **{name: value for name, value in about.items() if value is not None},
            "description": signature.description,
            "streaming": self.kind.streams,
            "output_schema": signature.output_schema,
            "context_keys": list(dict.fromkeys(keys)),
        }

    @property
    def name(self) -> str:
        """The name by which models call it."""
        return self.signature.name

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return self.signature.schema()


class App:
    """Tools that are hosted together.

    ``pool`` is the queue that its workers serve, unless ``toolyard-py run`` or TOOLYARD_POOL names another one.
    """

    def __init__(self, pool: str = "python") -> None:
        self.pool = pool
        self.tools: dict[str, Tool] = {}
        self.resources: list[Resource] = []

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        title: str = "",
        read_only: bool = False,
        idempotent: bool = False,
        destructive: bool = False,
        open_world: bool = False,
        uses_machine: bool = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        concurrency: int = 0,
        running_max: int = 0,
        attempts: int | None = None,
        backoff: tuple[float, float] | None = None,
        after_partial_output: Literal["restart", "continue", "buffer"] | None = None,
        needs_approval: bool = False,
        permission: Literal["read", "write", "external"] | None = None,
        runs_alone: bool | None = None,
        category: str = "",
        side_effect_scope: str = "",
        tags: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
        version: str = "",
        final: bool = False,
        return_direct: bool = False,
        hidden: bool = False,
        waiting: bool = False,
        exclusive_when: Mapping[str, Any] | None = None,
        parallel_when: Mapping[str, Any] | None = None,
        context_keys: Iterable[str] = (),
        process: bool = False,
    ) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Makes a tool of a function, which stays as it is.

        The schema is made of the type hints, the description of the docstring. A generator streams what it yields; a
        function that is not async runs on a thread, or in a process with ``process=True``.

        Times are seconds. ``timeout`` is that of an attempt (300 unless set), ``idle_timeout`` how long it may send no
        output (60 for generators, 0 is no limit), ``concurrency`` how many calls one worker executes at once,
        ``running_max`` how many all workers do. A call whose worker is lost is executed again if the tool is
        ``read_only`` or ``idempotent``, ``attempts`` times in all (3 unless set), and then ``after_partial_output``
        says what becomes of its output. ``aliases`` are other names with their descriptions. The other options are
        those of the Rust SDK's ``About``.
        """
        if function is not None:
            self._host(function, options, sys._getframe(1).f_locals)
            return function

        def decorate(function: F) -> F:
            self._host(function, options, sys._getframe(1).f_locals)
            return function

        return decorate

    def _host(self, function: Callable[..., Any], options: dict[str, Any], names: Mapping[str, Any]) -> None:
        """Hosts a function. `names` are those of the place of its definition, for annotations that are texts."""
        # Only here, because pydantic takes most of the time to load.
        from ._schema import read_function

        options = dict(options)
        name = options.pop("name", None) or getattr(function, "__name__", "")
        if not name:
            raise DefinitionError(f"{function!r} has no name: give it one with name=")
        process = options.pop("process", False)
        signature = read_function((function, plain(function)), name, options.pop("description", None), names)
        about = {"context_keys": list(options.pop("context_keys", ())), **options}
        about["aliases"] = list((about.pop("aliases", None) or {}).items())
        about["tags"] = list(about.get("tags", ()))
        for key in ("exclusive_when", "parallel_when"):
            if about.get(key) is not None:
                about[key] = json.dumps(about[key])
        self.add(Tool(function, signature, about, process))

    def add(self, tool: Tool) -> None:
        """Hosts a tool. Everything that is wrong with it is an error now, not when it is called."""
        from ._execute import host

        if tool.name in self.tools:
            raise DefinitionError(f"two tools have the name {tool.name}")
        unknown = [name for name in tool.signature.uses.values() if name not in self.resources]
        if unknown:
            raise DefinitionError(f"tool {tool.name} uses {unknown[0]!r}, which is no resource of this app")
        from ._native import Table

        try:
            host(tool, lambda declaration: Table().host(declaration, lambda call, arguments: None))
        except ValueError as error:
            raise DefinitionError(str(error)) from None
        self.tools[tool.name] = tool

    def include(self, other: App) -> None:
        """Hosts the tools and resources of another app too."""
        self.resources += [resource for resource in other.resources if resource not in self.resources]
        for tool in other.tools.values():
            self.add(tool)

    def resource(self, function: F) -> F:
        """Makes a resource of a function, sync or async: it returns it, or yields it and then closes it.

        It is made when the app starts, before the first call, and closed after the last one. A parameter
        ``Annotated[Database, Use(function)]`` is given it.
        """
        self.resources.append(function)
        return function

    def test_client(
        self,
        *,
        context: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        answer: Answering | None = None,
        tenant: str | None = None,
        caller: str | None = None,
        stored: bool = True,
    ) -> TestClient:
        """Calls the tools without a broker, with the validation, limits and errors of a worker.

        ``context`` is the caller's context, ``answer`` a function that answers the questions of tools.
        """
        from .testing import TestClient

        return TestClient(self, context=context, files=files, answer=answer, requester=(tenant, caller), stored=stored)

    def run(self, **settings: Any) -> None:
        """Hosts the tools until SIGTERM or SIGINT, as ``toolyard-py run`` does, with these ``worker.Settings``."""
        from .worker import Settings, run

        run(self, Settings(**settings))
