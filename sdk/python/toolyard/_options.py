"""The options of a turn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from .turns import Floor, Form, OnApproval, OnQuestion, Stored


class TurnOptions(TypedDict, total=False):
    """The options of a turn. None is required."""

    #: Makes the turn idempotent: the same key again finds the same run, from another process too. Random unless given.
    key: str
    #: Values for tools that declare their keys; the model does not see them.
    context: Mapping[str, Any]
    #: Files that the calls may open, by their names: bytes, paths, or what was uploaded before.
    files: Mapping[str, bytes | str | os.PathLike[str] | Stored]
    #: The tools that may be called; all listed ones unless given.
    tools: Sequence[str]
    #: The tenant of the run.
    tenant: str
    #: Seconds until the run's deadline, at most 30 days; 24 hours unless given.
    timeout: float
    #: The priority of its calls among those of the same tenant that wait in a pool; `normal` unless given.
    priority: Literal["low", "normal", "high"]
    #: Whether calls of dangerous tools need an approval.
    confirmation: Literal["ask", "none"]
    #: Calls that are approved with this request, by their ids; `_all` for every call.
    approve: Sequence[str]
    #: False: nothing of the run is kept after its end.
    store: bool
    #: The form of the message; recognised unless given.
    form: Form
    #: Whose output is given when; `interleaved` unless given.
    floor: Floor
    #: Decides on calls that need an approval: `True` or other arguments approve, `False` or a reason rejects, `None`
    #: leaves the call open, and any other value is a `TypeError`. It may be async if the client is. If it raises or is
    #: cancelled, it is called again when the turn is read again. It must not read the turn itself.
    on_approval: OnApproval
    #: Answers calls and questions that only the client can answer: with the answer, with `Decline()`, or with `None`,
    #: which leaves them open. It is called as `on_approval` is.
    on_question: OnQuestion
    #: `cancel`: the calls are cancelled if iterating or waiting is given up, also before the first event. This takes at
    #: most 10 s. A process that is killed cancels nothing.
    on_disconnect: Literal["cancel", "continue"]
    #: Further fields of `CreateRunRequest`, in the API's JSON.
    extra: Mapping[str, Any]
