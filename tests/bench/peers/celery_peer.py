"""Celery over Redis. For speed, as its guide on optimizing says: one process a core, a high prefetch multiplier for short
tasks, none of gossip, mingle and heartbeats (run.py starts it so). Output that streams is states of the task."""

import collections
import os
import time

from celery import Celery

import measure

app = Celery("peer", broker=os.environ["PEER_URL"], backend=os.environ["PEER_URL"])
app.conf.update(
    worker_prefetch_multiplier=64,
    task_acks_late=False,
    task_serializer="json",
    result_expires=600,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop():
    return None


@app.task(name="chunks", bind=True)
def chunks(self, count):
    for number in range(count):
        self.update_state(state="PROGRESS", meta={"chunk": number, "text": measure.CHUNK})


def rate(seconds):
    began, done, waiting = time.perf_counter(), 0, collections.deque()
    while True:
        goes_on = time.perf_counter() - began < seconds
        while goes_on and len(waiting) < measure.IN_FLIGHT:
            waiting.append(noop.delay())
        if not waiting:
            return done / (time.perf_counter() - began)
        waiting.popleft().get(timeout=60)
        done += 1


def stream(count):
    began, times = time.perf_counter(), []

    def heard(message):
        if message["status"] == "PROGRESS":
            assert message["result"]["chunk"] == len(times), f"{message} came for {len(times)}"
            times.append(measure.ms_since(began))

    chunks.delay(count).get(timeout=60, on_message=heard)
    assert len(times) == count, f"{len(times)} of {count} chunks came"
    return times


def client(options):
    rate(options.seconds / 3)
    rates, singles, first_chunks, chunk_rates = [], [], [], []
    for _ in range(options.rounds):
        rates.append(rate(options.seconds))
        for _ in range(options.singles):
            began = time.perf_counter()
            noop.delay().get(timeout=60)
            singles.append(measure.ms_since(began))
        try:
            first_chunks.extend(stream(1)[0] for _ in range(max(1, options.singles // 20)))
            chunk_rates.append(options.chunks / (stream(options.chunks)[-1] / 1000))
        except AssertionError as error:
            raise SystemExit(f"the stream is not whole: {error}")
    measure.summary(rates, singles, first_chunks, chunk_rates)


if __name__ == "__main__":
    client(measure.arguments())
