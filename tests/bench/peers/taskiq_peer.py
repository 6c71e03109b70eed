"""taskiq over NATS JetStream: its pull broker, in batches, with its results in Valkey, which are polled for. It has no
output that streams: a task's progress is one value that the next overwrites."""

import asyncio
import os

from taskiq_nats import PullBasedJetStreamBroker
from taskiq_redis import RedisAsyncResultBackend

import measure

results = RedisAsyncResultBackend(os.environ["PEER_RESULTS_URL"], result_ex_time=60)
broker = PullBasedJetStreamBroker(
    servers=[os.environ["PEER_URL"]], pull_consume_batch=100, pull_consume_timeout=1
).with_result_backend(results)


@broker.task
async def noop() -> None:
    return None


async def main():
    options = measure.arguments()
    await broker.startup()

    async def call(check_interval=0.05):
        task = await noop.kiq()
        result = await task.wait_result(check_interval=check_interval, timeout=60)
        return result.raise_for_error()

    # Looking as often while many wait takes from the rate.
    async def single():
        await call(check_interval=0.001)

    await measure.measure(options, call, single=single)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
