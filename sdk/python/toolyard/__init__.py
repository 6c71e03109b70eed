"""Tools for AI agents in Python, run on a fleet by Toolyard.

Write tools with :class:`App`, test them with :meth:`App.test_client`, host them with ``toolyard-py run``, and have the
tool calls of a model executed with :class:`Client` or :class:`AsyncClient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._bridge import Pending
    from .app import App
    from .client import AsyncClient, AsyncTurn, Client, Turn, TurnResult
    from .content import Content, Data, Image, Json, Progress, Result, Text
    from .context import Accepted, Answer, Cancel, Context, Decline, File
    from .errors import (
        BadInput,
        Cancelled,
        DefinitionError,
        ModelRetry,
        NeedsInput,
        RateLimited,
        RequestError,
        Retry,
        ToolError,
    )
    from .events import (
        CallEnded,
        Ended,
        Event,
        NeedsAnswer,
        NeedsApproval,
        Opened,
        Other,
        Output,
        Reported,
        Withdrawn,
    )
    from .marks import Given, Use
    from .testing import Called, TestClient

# Each name and its module. Modules are loaded when they are used, so that a program that is only a client does not load
# what tools need, and a worker starts quickly.
_MODULES = {
    "_bridge": ["Pending"],
    "app": ["App"],
    "marks": ["Given", "Use"],
    "client": ["AsyncClient", "AsyncTurn", "Client", "Turn", "TurnResult"],
    "content": ["Content", "Data", "Image", "Json", "Progress", "Result", "Text"],
    "context": ["Accepted", "Answer", "Cancel", "Context", "Decline", "File"],
    "errors": [
        "BadInput",
        "Cancelled",
        "DefinitionError",
        "ModelRetry",
        "NeedsInput",
        "RateLimited",
        "RequestError",
        "Retry",
        "ToolError",
    ],
    "events": [
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
    ],
    "testing": ["Called", "TestClient"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [  # noqa: RUF022 (in the order of the modules)
    "Pending",
    "App",
    "Given",
    "Use",
    "AsyncClient",
    "AsyncTurn",
    "Client",
    "Turn",
    "TurnResult",
    "Content",
    "Data",
    "Image",
    "Json",
    "Progress",
    "Result",
    "Text",
    "Accepted",
    "Answer",
    "Cancel",
    "Context",
    "Decline",
    "File",
    "BadInput",
    "Cancelled",
    "DefinitionError",
    "ModelRetry",
    "NeedsInput",
    "RateLimited",
    "RequestError",
    "Retry",
    "ToolError",
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
    "Called",
    "TestClient",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._native import __version__

        return __version__
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
