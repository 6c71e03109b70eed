"""Hosts the tools of an app: a worker, until it is told to stop."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ._bridge import _settle
from .errors import RequestError

if TYPE_CHECKING:
    from .app import App

__all__ = ["Settings", "WorkerError", "run"]

_log = logging.getLogger("toolyard")

NATS_URL = "nats://127.0.0.1:4222"


class WorkerError(Exception):
    """The worker could not start, or ended before it was told to."""


def _of_environment(name: str, default: Any = None) -> Any:
    return field(default_factory=lambda: os.environ.get(name) or default)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number(name: str, kind: Callable[[str], Any], default: float) -> Any:
    def read() -> Any:
        text = os.environ.get(name)
        try:
            return kind(text) if text else default
        except ValueError:
            raise ValueError(f"{name} is {text!r}: use a number") from None

    return field(default_factory=read)


def _flag(name: str) -> Any:
    return field(default_factory=lambda: os.environ.get(name, "").lower() in {"1", "true", "yes"})


@dataclass
class Settings:
    """The settings of a worker. Those that are not given come from the variables of ``toolyard worker``."""

    #: The queue that it serves; TOOLYARD_POOL. :func:`run` serves the app's if there is neither.
    pool: str = _of_environment("TOOLYARD_POOL", "")
    #: The broker's address; TOOLYARD_NATS_URL.
    nats_url: str = _of_environment("TOOLYARD_NATS_URL", NATS_URL)
    #: The file of the pool's NKey seed, as `toolyard nats-config` writes it; TOOLYARD_NATS_NKEY.
    nkey: str | None = _of_environment("TOOLYARD_NATS_NKEY")
    #: The file of the authorities (PEM) that sign the broker's certificate; TOOLYARD_NATS_CA.
    ca: str | None = _of_environment("TOOLYARD_NATS_CA")
    #: Calls that it executes at once; TOOLYARD_SLOTS.
    slots: int = _number("TOOLYARD_SLOTS", int, 16)
    #: How long running calls may take to end after SIGTERM, in seconds; then they are given back. TOOLYARD_DRAIN.
    drain_s: float = _number("TOOLYARD_DRAIN", float, 120)
    #: Address of the admin port: health, metrics; TOOLYARD_ADMIN_LISTEN.
    admin: str | None = _of_environment("TOOLYARD_ADMIN_LISTEN")
    #: Names under which the admin port is served, beside addresses; TOOLYARD_HOST_NAMES, with commas between them.
    host_names: Sequence[str] = field(default_factory=lambda: _names(os.environ.get("TOOLYARD_HOST_NAMES", "")))
    #: The file of hooks that decide about results; TOOLYARD_HOOKS.
    hooks: str | None = _of_environment("TOOLYARD_HOOKS")
    #: The bucket of large results, as s3://BUCKET, the same as that of the coordinators; TOOLYARD_OBJECTS.
    objects: str | None = _of_environment("TOOLYARD_OBJECTS")
    objects_endpoint: str | None = _of_environment("TOOLYARD_OBJECTS_ENDPOINT")
    objects_region: str | None = _of_environment("TOOLYARD_OBJECTS_REGION")
    #: Allows an http:// endpoint: 1, true or yes in TOOLYARD_OBJECTS_ALLOW_HTTP.
    objects_allow_http: bool = _flag("TOOLYARD_OBJECTS_ALLOW_HTTP")


def run(app: App, settings: Settings, ready: Callable[[str], None] | None = None) -> None:
    """Serves calls until SIGTERM or SIGINT, or until an operator drains the worker.

    Then it takes no more calls and lets running ones end. A second signal ends the process at once. ``ready`` is
    called with the worker's id when it takes calls. Functions that have not ended at the end of the drain are left
    behind on threads that do not keep the process from ending.
    """
    from ._execute import Runner
    from ._native import Worker

    settings = replace(settings, pool=settings.pool or app.pool)
    runner = Runner(app)
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()
    runner.open()
    try:
        worker = Worker.start(
            runner.table, json.dumps(asdict(settings)), ready or _ready(app, settings), partial(_settle, ended)
        )
        with _Signals(worker.stop):
            ended.result()
    except (RequestError, ValueError) as error:
        raise WorkerError(str(error)) from None
    finally:
        runner.close()


def _ready(app: App, settings: Settings) -> Callable[[str], None]:
    def ready(worker: str) -> None:
        _log.info("worker %s serves pool %s: %s", worker, settings.pool, ", ".join(sorted(app.tools)))

    return ready


class _Signals:
    """Stops the worker at the first SIGTERM or SIGINT, and the process at the second."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        # Python takes signals on its main thread alone; elsewhere the program that embeds the worker has them.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._signalled)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _signalled(self, number: int, _: Any) -> None:
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
        _log.info("stopping: running calls may end; a second signal ends the process at once")
        self._stop()
