"""Prints how long the package takes to import, in milliseconds that passed and of the processor: medians of processes.

warm: with compiled files. cold: the package's own are missing. all_cold: those of the standard library and of all
dependencies too. with_a_tool: warm, and a tool is defined, which needs pydantic.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import toolyard

IMPORT = "from toolyard import App, Context"
DEFINE = IMPORT + "\napp = App()\n@app.tool\nasync def noop(ctx: Context, name: str = '') -> str:\n    'None.'"
TIMES = 9


def median(program: str, environment: Mapping[str, str]) -> dict[str, float]:
    """The median time of a program and of its processor, without those of the interpreter."""
    clocks = "(time.perf_counter(), time.process_time())"
    timed = f"import time\nbegan = {clocks}\n{program}\nended = {clocks}\nprint(*ended, *began)"
    passed, used = [], []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory() as cache:
            own = {name: value.replace("CACHE", cache) for name, value in environment.items()}
            command = [sys.executable, "-c", timed]
            done = subprocess.run(command, env={**os.environ, **own}, cwd=cache, check=True, stdout=subprocess.PIPE)
            ended, ended_cpu, began, began_cpu = map(float, done.stdout.split())
            passed.append((ended - began) * 1000)
            used.append((ended_cpu - began_cpu) * 1000)
    return {"passed": round(statistics.median(passed), 1), "processor": round(statistics.median(used), 1)}


def main() -> None:
    """Measures each."""
    median(DEFINE, {})  # writes the compiled files
    with tempfile.TemporaryDirectory() as copy:
        package = Path(toolyard.__file__).parent
        shutil.copytree(package, Path(copy) / "toolyard", ignore=shutil.ignore_patterns("__pycache__"))
        cold = median(IMPORT, {"PYTHONPATH": copy, "PYTHONDONTWRITEBYTECODE": "1"})
    times = {
        "warm": median(IMPORT, {}),
        "cold": cold,
        "all_cold": median(IMPORT, {"PYTHONPYCACHEPREFIX": "CACHE"}),
        "with_a_tool": median(DEFINE, {}),
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
