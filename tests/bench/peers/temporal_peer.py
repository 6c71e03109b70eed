"""Temporal's development server with its Python SDK. The call is a standalone activity, which its documentation names the
job queue and which spares the workflow; output that streams goes through Workflow Streams, flushed at once."""

import asyncio
import time
import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from temporalio.contrib.workflow_streams import WorkflowStream, WorkflowStreamClient

    import measure

QUEUE = "peer"
SOON = timedelta(seconds=60)


@activity.defn
async def noop() -> None:
    return None


@activity.defn
async def chunks(count: int) -> None:
    client = WorkflowStreamClient.from_within_activity(batch_interval=timedelta(milliseconds=1))
    topic = client.topic("chunks", type=str)
    async with client:
        for number in range(count):
            topic.publish(f"{number} {measure.CHUNK}", force_flush=True)


@workflow.defn
class Streaming:
    @workflow.init
    def __init__(self, count: int) -> None:
        self.stream = WorkflowStream()
        self.read = False

    @workflow.signal
    def all_read(self) -> None:
        self.read = True

    @workflow.run
    async def run(self, count: int) -> None:
        await workflow.execute_activity(chunks, count, start_to_close_timeout=SOON)
        await workflow.wait_condition(lambda: self.read)


async def worker(client):
    settings = dict(max_concurrent_activities=500, max_concurrent_activity_task_polls=32)
    async with Worker(client, task_queue=QUEUE, workflows=[Streaming], activities=[noop, chunks], **settings):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def main():
    options = measure.arguments()
    client = await Client.connect(options.url)
    if options.role == "worker":
        return await worker(client)

    async def call():
        await client.execute_activity(
            noop, id=uuid.uuid4().hex, task_queue=QUEUE, start_to_close_timeout=SOON
        )

    async def stream(count):
        began, times = time.perf_counter(), []
        handle = await client.start_workflow(Streaming.run, count, id=uuid.uuid4().hex, task_queue=QUEUE)
        reader = WorkflowStreamClient.create(client, handle.id).topic("chunks", type=str)
        async for item in reader.subscribe(poll_cooldown=timedelta(0)):
            assert item.data.startswith(f"{len(times)} "), f"{item.data} came for {len(times)}"
            times.append(measure.ms_since(began))
            if len(times) == count:
                break
        await handle.signal(Streaming.all_read)
        await handle.result()
        return times

    await measure.measure(options, call, stream=stream)


if __name__ == "__main__":
    asyncio.run(main())
