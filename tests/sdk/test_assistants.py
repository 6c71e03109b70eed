"""The Assistants face, driven by the SDK of the vendor."""

import os
import unittest
import warnings

import openai
from openai.types.beta.threads import Run
from openai.types.beta.threads.runs import RunStep

client = openai.OpenAI(base_url=os.environ["TOOLYARD_URL"] + "/v1", api_key="none", max_retries=0, timeout=60)
runs = client.beta.threads.runs


def call(call_id, name, arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Without it calls of bash, which reaches beyond the system, await approval.
UNASKED = [{"type": "mcp", "require_approval": "never"}]
QUESTION = call("ask", "ask_user", '{"question":"Which one?"}')
BASH = call("bash", "bash", '{"command":"echo one; sleep 0.3; echo two"}')


class Heard(openai.AssistantEventHandler):
    """Keeps the names of the events, and the steps as the SDK puts them together."""

    def __init__(self):
        super().__init__()
        self.names, self.steps = [], {}

    def on_event(self, event):
        self.names.append(event.event)

    def on_run_step_done(self, step):
        self.steps[step.step_details.tool_calls[0].id] = step


class Assistants(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", DeprecationWarning)
        self.thread = client.beta.threads.create().id

    def begin(self, *calls):
        return runs.create(thread_id=self.thread, assistant_id="any", tools=UNASKED, extra_body={"tool_calls": list(calls)})

    def until(self, run, status):
        run = runs.poll(run.id, thread_id=self.thread, poll_interval_ms=50)
        self.assertEqual(run.status, status)
        return Run.model_validate(run.to_dict())

    def test_a_run_requires_action_and_goes_on_with_the_outputs(self):
        run = self.until(self.begin(QUESTION, BASH), "requires_action")
        (asked,) = run.required_action.submit_tool_outputs.tool_calls
        self.assertEqual((asked.id, asked.function.name), ("ask", "ask_user"))
        runs.submit_tool_outputs(run.id, thread_id=self.thread, tool_outputs=[{"tool_call_id": "ask", "output": "blue"}])
        self.until(run, "completed")
        steps = list(runs.steps.list(run.id, thread_id=self.thread, order="asc"))
        for step in steps:
            RunStep.model_validate(step.to_dict())
        outputs = [step.step_details.tool_calls[0].function.output for step in steps]
        self.assertEqual(outputs, ["blue", 'one\ntwo\n\n{"exit_code":0}'])

    def test_a_stream_ends_where_action_is_required_and_the_next_one_goes_on(self):
        heard = Heard()
        asked = {"tool_calls": [BASH, QUESTION]}
        with runs.stream(thread_id=self.thread, assistant_id="any", tools=UNASKED, extra_body=asked, event_handler=heard) as stream:
            stream.until_done()
            run = stream.current_run
        names = [name.removeprefix("thread.run.") for name in heard.names]
        self.assertEqual((names[:3], names[-1]), (["created", "queued", "in_progress"], "requires_action"))
        self.assertEqual(heard.steps["bash"].step_details.tool_calls[0].function.output, 'one\ntwo\n\n{"exit_code":0}')
        self.assertGreater(names.count("step.delta"), 3, "output comes bit by bit")
        self.assertEqual(run.status, "requires_action")

        rest = Heard()
        answers = [{"tool_call_id": "ask", "output": "blue"}]
        with runs.submit_tool_outputs_stream(run_id=run.id, thread_id=self.thread, tool_outputs=answers, event_handler=rest) as stream:
            stream.until_done()
            self.assertEqual(stream.current_run.status, "completed")
        names = [name.removeprefix("thread.run.") for name in rest.names]
        self.assertEqual(names, ["step.completed", "queued", "in_progress", "completed"])

    def test_events_come_as_a_plain_stream_too(self):
        asked = {"tool_calls": [call("a", "get_current_time", '{"time_zone":"UTC"}')]}
        events = list(runs.create(thread_id=self.thread, assistant_id="any", stream=True, extra_body=asked))
        self.assertEqual((events[0].event, events[-1].event), ("thread.run.created", "thread.run.completed"))
        self.assertEqual(events[-1].data.thread_id, self.thread)

    def test_a_run_is_cancelled(self):
        run = self.begin(call("a", "bash", '{"command":"sleep 60"}'))
        self.assertIn(runs.cancel(run.id, thread_id=self.thread).status, ("cancelling", "cancelled"))
        self.until(run, "cancelled")

    def test_all_outputs_are_given_at_once_and_once(self):
        run = self.until(self.begin(QUESTION, {**QUESTION, "id": "too"}), "requires_action")

        def submit(**outputs):
            outputs = [{"tool_call_id": name, "output": text} for name, text in outputs.items()]
            return runs.submit_tool_outputs(run.id, thread_id=self.thread, tool_outputs=outputs)

        for outputs, code in ({"ask": "a"}, "ANSWERS_MISSING"), ({"ask": "a", "other": "b"}, "CALL_NOT_FOUND"):
            with self.assertRaises(openai.APIStatusError) as refused:
                submit(**outputs)
            self.assertEqual(refused.exception.code, code)
        submit(ask="a", too="b")
        submit(ask="a", too="b")
        with self.assertRaises(openai.ConflictError) as refused:
            submit(ask="a", too="c")
        self.assertEqual(refused.exception.code, "CALL_ALREADY_ANSWERED")

    def test_both_faces_tell_the_same_parked_run(self):
        run = self.until(self.begin(QUESTION), "requires_action")
        response_id = run.id.replace("run_", "resp_", 1)
        response = client.responses.retrieve(response_id)
        self.assertEqual((response.status, [item.type for item in response.output]), ("completed", ["function_call"]))
        answer = {"type": "function_call_output", "call_id": "ask", "output": "blue"}
        client.responses.create(previous_response_id=response_id, input=[answer])
        self.until(run, "completed")


if __name__ == "__main__":
    unittest.main()
