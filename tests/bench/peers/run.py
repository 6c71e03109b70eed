"""Measures the same no-op call and the same stream of chunks on what people would use in Toolyard's place.

`cargo run --release -p toolyard-tests --bin bench -- --only peers` runs it, with a broker and a store of its own. Packages
come from PyPI and npm, pinned by the files beside this one, into the cache folder; nothing is installed elsewhere.
Prints one JSON object: a peer that cannot be had or does not work is in it, with the reason.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
INSTALL_LIMIT_S = 1800
MEASURE_LIMIT_S = 300


class Unavailable(Exception):
    """A peer cannot be had, or does not work."""


def say(line):
    print(f"peers: {line}", file=sys.stderr, flush=True)


def run(command, **settings):
    """Runs a command to its end; gives what it printed."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, **settings)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if ended.returncode != 0:
        lines = (ended.stderr or ended.stdout).strip().splitlines()
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        raise Unavailable(f"{pathlib.Path(command[0]).name} failed: {' / '.join(errors[-1:] or lines[-5:])}")
    return ended.stdout


def is_made_from(place, sources):
    """Whether a folder of the cache was made from these very files."""
    made_from = place / "made_from"
    text = "\n".join(source.read_text() for source in sources)
    return made_from.exists() and made_from.read_text() == text


def mark_made_from(place, sources):
    (place / "made_from").write_text("\n".join(source.read_text() for source in sources))


def python(cache):
    """The interpreter of an environment with the Python peers."""
    place, wanted = cache / "python", [HERE / "requirements.txt"]
    if not is_made_from(place, wanted):
        say("installing from PyPI")
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        install = [place / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "-r", wanted[0]]
        run([str(word) for word in install], timeout=INSTALL_LIMIT_S)
        mark_made_from(place, wanted)
    return str(place / "bin/python")


def node(cache):
    """A folder in which the BullMQ peer finds its packages."""
    place, wanted = cache / "node", [HERE / "package.json", HERE / "package-lock.json"]
    if not is_made_from(place, wanted):
        say("installing from npm")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for source in wanted:
            shutil.copy(source, place)
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=place, timeout=INSTALL_LIMIT_S)
        mark_made_from(place, wanted)
    shutil.copy(HERE / "bullmq_peer.mjs", place)
    return place / "bullmq_peer.mjs"


class Peer:
    """Processes of a peer for as long as it is measured."""

    def __init__(self, effort):
        self.effort = effort
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            # With the processes that it started itself.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command, ready=None, **settings):
        """Starts a process; where it says a word when it is ready, waits for that."""
        log = subprocess.DEVNULL
        output = {"stdout": subprocess.PIPE if ready else log, "stderr": log, "text": True}
        process = subprocess.Popen(command, start_new_session=True, **output, **settings)
        self.processes.append(process)
        if ready and process.stdout.readline().strip() != ready:
            raise Unavailable(f"{command} ended before it was ready")

    def measure(self, command, **settings):
        return json.loads(run([*command, *self.effort], timeout=MEASURE_LIMIT_S, **settings))


def bullmq(peer, options, cache):
    program = ["node", str(node(cache))]
    peer.start([*program, "worker", "--url", options.redis_url], ready="ready")
    return peer.measure([*program, "client", "--url", options.redis_url])


def celery(peer, options, cache):
    interpreter = python(cache)
    settings = {"cwd": HERE, "env": {**os.environ, "PEER_URL": f"{options.redis_url}/1", "PYTHONDONTWRITEBYTECODE": "1"}}
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    worker = ["-m", "celery", "-A", "celery_peer", "worker", "--concurrency", str(os.cpu_count()), *quiet]
    peer.start([interpreter, *worker], **settings)
    return peer.measure([interpreter, "celery_peer.py", "client", "--url", "-"], **settings)


def temporal(peer, options, cache):
    interpreter = python(cache)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = [str(pathlib.Path(interpreter).parent / "temporal"), "server", "start-dev", "--headless", "--port", str(port)]
    peer.start([*server, "--log-level", "never"])
    until_it_listens(port)
    settings = {"cwd": HERE, "env": {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}}
    program = [interpreter, "temporal_peer.py"]
    peer.start([*program, "worker", "--url", f"127.0.0.1:{port}"], ready="ready", **settings)
    return peer.measure([*program, "client", "--url", f"127.0.0.1:{port}"], **settings)


def taskiq_nats(peer, options, cache):
    interpreter = python(cache)
    urls = {"PEER_URL": options.nats_url, "PEER_RESULTS_URL": f"{options.redis_url}/3"}
    settings = {"cwd": HERE, "env": {**os.environ, **urls, "PYTHONDONTWRITEBYTECODE": "1"}}
    worker = ["-m", "taskiq", "worker", "taskiq_peer:broker", "--workers", str(os.cpu_count())]
    peer.start([interpreter, *worker, "--max-async-tasks", "256", "--log-level", "ERROR"], **settings)
    found = peer.measure([interpreter, "taskiq_peer.py", "client", "--url", "-"], **settings)
    return {**found, "stream": "none: a task's progress is one value that the next overwrites"}


def until_it_listens(port):
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Unavailable(f"nobody listens on port {port}")


PEERS = {
    "bullmq": (bullmq, "6.7.0, on Valkey without persistence"),
    "celery": (celery, "5.7.0, on Valkey without persistence"),
    "temporal": (temporal, "development server 1.32.0 in memory, SDK 1.35.0"),
    "taskiq_nats": (taskiq_nats, "0.7.0, on JetStream with file storage, results on Valkey without persistence"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--cache", required=True, type=pathlib.Path, help="the cache folder of Toolyard")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", choices=PEERS, action="append", help="only this one; may be given several times")
    options = parser.parse_args()
    cache = options.cache / "peers"
    cache.mkdir(parents=True, exist_ok=True)
    effort = ["--rounds", "1", "--seconds", "1", "--singles", "20", "--chunks", "200"] if options.quick else []
    results = {}
    for name in options.peer or PEERS:
        measure, what = PEERS[name]
        say(name)
        try:
            with Peer(effort) as peer:
                results[name] = {"what": what, **measure(peer, options, cache)}
        except (Unavailable, ValueError) as error:
            results[name] = {"what": what, "unavailable": str(error)}
            say(f"{name} is unavailable: {error}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
