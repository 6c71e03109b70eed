"""A coordinator that is killed in the middle of an SDK's stream: what another one gives after it makes the same bytes."""

import json
import os
import pathlib
import subprocess
import unittest

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "toolyard"
COUNT = {"commands": ["for i in $(seq 20); do echo $i; sleep 0.1; done"]}
CALL = {"type": "shell_call", "call_id": "a", "action": COUNT}
UNASKED = [{"type": "mcp", "server_label": "toolyard", "require_approval": "never"}]


def client(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


class Crash(unittest.TestCase):
    def start(self, *arguments, ready):
        """A process of ours, and the first of its words that says that it is ready."""
        log = subprocess.PIPE if ready == "address" else subprocess.DEVNULL
        process = subprocess.Popen([PROGRAM, *arguments, "-o", "json"], stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        said = process.stderr or process.stdout
        for line in said:
            word = json.loads(line)
            if ready in word:
                return process, word
        self.fail(f"{arguments[0]} ended before it was up")

    def test_a_stream_that_a_kill_cut_off_is_read_on_at_another_coordinator(self):
        _, yard = self.start("dev", "--listen", "127.0.0.1:0", ready="url")
        coordinator, said = self.start("coordinator", "--nats-url", yard["nats_url"], "--listen", "127.0.0.1:0", ready="address")
        dying, living = client(f"http://{said['address']}/v1"), client(f"{yard['url']}/v1")
        before = []
        with self.assertRaises(openai.APIConnectionError):
            for event in dying.responses.create(input=[CALL], tools=UNASKED, stream=True):
                before.append(event)
                if event.type == "response.shell_call_output_content.delta":
                    coordinator.kill()
        self.assertNotIn(before[-1].type, ("response.completed", "response.failed", "response.incomplete"))
        response_id = before[0].response.id
        after = living.responses.retrieve(response_id, stream=True, starting_after=before[-1].sequence_number)
        resumed = [event.to_json() for event in before + list(after)]
        whole = [event.to_json() for event in living.responses.retrieve(response_id, stream=True)]
        self.assertEqual(resumed, whole)
        written = living.responses.retrieve(response_id).output[-1].output[0].stdout
        self.assertEqual(written, "".join(f"{number}\n" for number in range(1, 21)))
