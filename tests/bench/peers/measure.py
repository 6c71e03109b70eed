"""Rates and latencies, as the bench's own `measure.rs` has them, for peers whose client is Python."""

import argparse
import asyncio
import json
import statistics
import time

IN_FLIGHT = 256
CHUNK = "x" * 64


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["client", "worker"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=2000)
    return parser.parse_args()


def summary(rates, singles, first_chunks, chunk_rates):
    """What a client prints, in the words of the bench's JSON."""
    found = {
        "in_flight": IN_FLIGHT,
        "calls_per_s": round(statistics.median(rates), 1),
        "p50_ms": round(quantile(singles, 0.50), 3),
        "p99_ms": round(quantile(singles, 0.99), 3),
    }
    if chunk_rates:
        found["first_chunk_p50_ms"] = round(quantile(first_chunks, 0.50), 3)
        found["chunks_per_s"] = round(statistics.median(chunk_rates), 1)
    print(json.dumps(found))


def quantile(samples, part):
    ordered = sorted(samples)
    return ordered[round((len(ordered) - 1) * part)]


def ms_since(began):
    return (time.perf_counter() - began) * 1000


async def rate(call, seconds):
    """Calls a second, with IN_FLIGHT of them under way all the time."""
    began = time.perf_counter()
    done = 0

    async def one_after_another():
        nonlocal done
        while time.perf_counter() - began < seconds:
            await call()
            done += 1

    await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))
    return done / (time.perf_counter() - began)


async def measure(options, call, single=None, stream=None):
    """`stream(chunks)` gives the times of all chunks, in order, in milliseconds from the call's submission."""
    await rate(call, options.seconds / 3)
    rates, singles, first_chunks, chunk_rates = [], [], [], []
    for _ in range(options.rounds):
        rates.append(await rate(call, options.seconds))
        for _ in range(options.singles):
            began = time.perf_counter()
            await (single or call)()
            singles.append(ms_since(began))
        if stream:
            for _ in range(max(1, options.singles // 20)):
                first_chunks.append((await stream(1))[0])
            times = await stream(options.chunks)
            chunk_rates.append(options.chunks / (times[-1] / 1000))
    summary(rates, singles, first_chunks, chunk_rates)
