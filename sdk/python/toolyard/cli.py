"""The program `toolyard-py`: hosts the tools of an app."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import App

EXAMPLES = """\
examples:
  toolyard-py run files:app                    the app in files.py, for the broker of `toolyard dev`
  toolyard-py run files:app --reload           the same, started again after each change
  toolyard-py run tools.web:app --pool web --slots 64 --nats-url nats://broker:4222 --nats-nkey web.nk
  toolyard-py tools files:app                  the definitions of its tools, without a broker

Logs go to standard error; TOOLYARD_LOG selects what is logged.
"""


class UsageError(Exception):
    """The arguments cannot be used."""


def load(name: str) -> App:
    """The app of a name such as ``files:app``; ``:app`` may be left out."""
    from .app import App

    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise UsageError(f"there is no module {module_name!r} in {os.getcwd()} or on Python's path") from None
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        known = f"its apps are {', '.join(apps)}" if apps else "it has no app: app = toolyard.App()"
        raise UsageError(f"{module_name}:{attribute or 'app'} is not an app of tools; {known}")
    return app


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "toolyard-py",
        description="Hosts Python functions as tools of Toolyard",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve the calls of an app's tools until SIGTERM or SIGINT")
    run.add_argument("app", metavar="MODULE:APP")
    run.add_argument("--pool", help="the queue that it serves (default: the app's) [env: TOOLYARD_POOL]")
    run.add_argument("--nats-url", metavar="URL", help="the broker's address [env: TOOLYARD_NATS_URL]")
    run.add_argument("--nats-nkey", dest="nkey", metavar="FILE", help="the pool's key [env: TOOLYARD_NATS_NKEY]")
    run.add_argument("--nats-ca", dest="ca", metavar="FILE", help="the broker's authorities [env: TOOLYARD_NATS_CA]")
    run.add_argument("--slots", type=int, help="calls that it executes at once (default: 16) [env: TOOLYARD_SLOTS]")
    run.add_argument(
        "--drain",
        dest="drain_s",
        type=float,
        metavar="SECONDS",
        help="time for running calls at the end (default: 120) [env: TOOLYARD_DRAIN]",
    )
    run.add_argument("--admin-listen", dest="admin", metavar="ADDR", help="the admin port [env: TOOLYARD_ADMIN_LISTEN]")
    run.add_argument("--hooks", metavar="FILE", help="hooks that decide about results [env: TOOLYARD_HOOKS]")
    run.add_argument("--reload", action="store_true", help="start again after each change of a Python file here")
    run.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="form of logs, and of what is printed"
    )
    tools = commands.add_parser("tools", help="print the definitions of an app's tools as JSON")
    tools.add_argument("app", metavar="MODULE:APP")
    return parser


class _JsonLines(logging.Formatter):
    """Python's logs in the form of the worker's own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: getattr(record, name) for name in ("run_id", "call_id", "attempt") if hasattr(record, name)}
        line = {"timestamp": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps({**line, "target": record.name, **fields})


def _run(arguments: argparse.Namespace) -> None:
    from ._native import init_logs
    from .worker import Settings, run

    is_json = arguments.output == "json"
    init_logs(is_json)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if is_json:
        logging.getLogger().handlers[0].setFormatter(_JsonLines())
    app = load(arguments.app)
    given = {
        name: getattr(arguments, name)
        for name in ("pool", "nats_url", "nkey", "ca", "slots", "drain_s", "admin", "hooks")
        if getattr(arguments, name) is not None
    }
    try:
        settings = Settings(**given)
    except ValueError as error:
        raise UsageError(str(error)) from None
    settings.pool = settings.pool or app.pool

    def ready(worker: str) -> None:
        if is_json:
            print(json.dumps({"worker_id": worker, "pool": settings.pool, "tools": sorted(app.tools)}), flush=True)
        else:
            print(f"{worker} serves pool {settings.pool}: {', '.join(sorted(app.tools))}", flush=True)

    run(app, settings, ready)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    from .errors import DefinitionError
    from .worker import WorkerError

    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = _parser().parse_args(given)
    try:
        if parsed.command == "tools":
            app = load(parsed.app)
            tools = [{"name": it.name, **it.about, "input_schema": it.schema} for it in app.tools.values()]
            print(json.dumps(tools, indent=2))
        elif parsed.reload:
            from ._reload import supervise

            supervise([argument for argument in given if argument != "--reload"])
        else:
            _run(parsed)
    except (UsageError, DefinitionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (WorkerError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
