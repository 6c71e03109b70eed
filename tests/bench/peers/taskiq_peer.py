"""taskiq over NATS JetStream: its pull broker, in batches, with its results in the object store, which are polled for. It
has no output that streams: a task's progress is one value that the next overwrites."""

import asyncio
import os

from taskiq.exceptions import ResultGetError, ResultIsReadyError
from taskiq_nats import NATSObjectStoreResultBackend, PullBasedJetStreamBroker

import measure

URL = os.environ["PEER_URL"]
broker = PullBasedJetStreamBroker(servers=[URL], pull_consume_batch=100, pull_consume_timeout=1).with_result_backend(
    NATSObjectStoreResultBackend(servers=[URL])
)


@broker.task
async def noop() -> None:
    return None


async def main():
    options = measure.arguments()
    await broker.startup()

    async def call(check_interval=0.2):
        task = await noop.kiq()
        while True:
            try:
                result = await task.wait_result(check_interval=check_interval, timeout=60)
                return result.raise_for_error()
            except (ResultGetError, ResultIsReadyError):
                # Reading an object makes a consumer, of which the broker may have too many for the moment.
                await asyncio.sleep(check_interval)

    # Each look reads the object store: looking as often while many wait takes from the rate.
    async def single():
        await call(check_interval=0.001)

    await measure.measure(options, call, single=single)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
