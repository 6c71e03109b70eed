"""The Responses face, driven by the SDK of the vendor: what it reads, and that it reads it as what the API documents."""

import os
import unittest

import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent

client = openai.OpenAI(base_url=os.environ["TOOLYARD_URL"] + "/v1", api_key="none", max_retries=0, timeout=60)
documented = pydantic.TypeAdapter(ResponseStreamEvent)


def call(call_id, name, arguments="{}"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def bash(call_id, command):
    return {"type": "shell_call", "call_id": call_id, "action": {"commands": [command]}}


def output(call_id, text):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


QUESTION = call("ask", "ask_user", '{"question":"Which one?"}')
TIME = call("time", "get_current_time", '{"time_zone":"Asia/Shanghai"}')
# Without it calls of bash, which reaches beyond the system, await approval.
UNASKED = [{"type": "mcp", "server_label": "toolyard", "require_approval": "never"}]
COUNT = "for i in 1 2 3; do echo $i; sleep 0.2; done; echo late >&2; exit 3"


class Responses(unittest.TestCase):
    def check(self, events):
        """What holds of every stream that was read whole."""
        self.assertEqual([event.type for event in events[:2]], ["response.created", "response.in_progress"])
        numbers = [event.sequence_number for event in events]
        self.assertEqual(numbers, sorted(set(numbers)))
        for event in events:
            # Pydantic refuses what is not of the documented form; reading a stream, the SDK does not.
            documented.validate_python(event.to_dict())
        open_item = None
        for event in events:
            if event.type == "response.output_item.added":
                self.assertIsNone(open_item, "one item at a time")
                open_item = event.item.id
            elif event.type == "response.output_item.done":
                self.assertEqual(event.item.id, open_item)
                open_item = None
            elif getattr(event, "item_id", None):
                self.assertEqual(event.item_id, open_item)
        last = events[-1]
        self.assertIn(last.type, ("response.completed", "response.failed", "response.incomplete"))
        done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
        self.assertEqual([done[index].to_dict() for index in sorted(done)], [item.to_dict() for item in last.response.output])
        return last.response

    def test_calls_are_executed_and_their_results_are_items(self):
        response = client.responses.create(input=[bash("a", "echo hello"), TIME, call("none", "no_such_tool")], tools=UNASKED)
        Response.model_validate(response.to_dict())
        kinds = [item.type for item in response.output]
        self.assertEqual((response.status, sorted(kinds)), ("completed", ["mcp_call", "mcp_call", "shell_call", "shell_call_output"]))
        shell = next(item for item in response.output if item.type == "shell_call_output")
        self.assertEqual((shell.call_id, shell.output[0].stdout, shell.output[0].outcome.exit_code), ("a", "hello\n", 0))
        calls = {item.name: item for item in response.output if item.type == "mcp_call"}
        self.assertIn("Asia/Shanghai", calls["get_current_time"].output)
        self.assertEqual(calls["no_such_tool"].status, "failed")

    def test_a_stream_is_read_and_what_it_tells_adds_up(self):
        events = list(client.responses.create(input=[bash("a", COUNT), TIME], tools=UNASKED, stream=True))
        response = self.check(events)
        deltas = [event for event in events if event.type == "response.shell_call_output_content.delta"]
        self.assertGreater(len(deltas), 1, "it comes bit by bit")
        self.assertEqual("".join(event.delta.stdout or "" for event in deltas), "1\n2\n3\n")
        written = next(item for item in response.output if item.type == "shell_call_output").output[0]
        self.assertEqual((written.stdout, written.stderr, written.outcome.exit_code), ("1\n2\n3\n", "late\n", 3))
        self.assertEqual(client.responses.retrieve(response.id).to_dict(), response.to_dict())

    def test_the_accumulating_stream_ends_with_the_response(self):
        with client.responses.stream(input=[bash("a", COUNT), TIME, QUESTION], tools=UNASKED, model="none") as stream:
            events = list(stream)
            final = stream.get_final_response()
        self.assertEqual(events[-1].type, "response.completed")
        question = next(item for item in final.output if item.type == "function_call")
        self.assertEqual((question.name, question.call_id, question.status), ("ask_user", "ask", "completed"))
        client.responses.cancel(final.id)

    def test_who_comes_back_gets_exactly_the_rest(self):
        whole = list(client.responses.create(input=[bash("a", COUNT), TIME], tools=UNASKED, stream=True))
        response = self.check(whole)
        for after in (0, 3, whole[-1].sequence_number - 1):
            rest = list(client.responses.retrieve(response.id, stream=True, starting_after=after))
            self.assertEqual([event.to_dict() for event in rest], [event.to_dict() for event in whole if event.sequence_number > after])
        with client.responses.stream(response_id=response.id, starting_after=5) as stream:
            told = [event.sequence_number for event in stream]
            self.assertEqual(stream.get_final_response().id, response.id)
        self.assertEqual(told, [event.sequence_number for event in whole if event.sequence_number > 5])
        with self.assertRaises(openai.BadRequestError) as refused:
            list(client.responses.retrieve(response.id, stream=True, starting_after=10_000))
        self.assertEqual((refused.exception.code, refused.exception.param), ("UNKNOWN_SEQUENCE_NUMBER", "starting_after"))

    def test_a_broken_stream_is_read_on(self):
        stream = client.responses.create(input=[bash("a", COUNT)], tools=UNASKED, stream=True)
        read = [next(stream) for _ in range(4)]
        stream.close()
        response_id = read[0].response.id
        rest = client.responses.retrieve(response_id, stream=True, starting_after=read[-1].sequence_number)
        self.check(read + list(rest))

    def test_an_open_call_is_answered_by_the_next_response(self):
        asked = client.responses.create(input=[QUESTION, TIME], metadata={"who": "me"})
        self.assertEqual((asked.status, asked.metadata), ("completed", {"who": "me"}))
        with self.assertRaises(openai.NotFoundError):
            client.responses.create(previous_response_id=asked.id, input=[output("other", "?")])
        events = list(client.responses.create(previous_response_id=asked.id, input=[output("ask", "blue")], stream=True))
        answered = self.check(events)
        self.assertEqual((answered.status, answered.previous_response_id), ("completed", asked.id))
        again = client.responses.create(previous_response_id=asked.id, input=[output("ask", "blue")])
        self.assertEqual(again.to_dict(), answered.to_dict(), "the same answer is the same response")
        with self.assertRaises(openai.ConflictError) as refused:
            client.responses.create(previous_response_id=asked.id, input=[output("ask", "red")])
        self.assertEqual(refused.exception.code, "CALL_ALREADY_ANSWERED")
        given = list(client.responses.input_items.list(answered.id))
        self.assertEqual([(item.type, item.call_id, item.output) for item in given], [("function_call_output", "ask", "blue")])
        first = client.responses.input_items.list(asked.id, order="asc", limit=1)
        self.assertEqual([item.call_id for item in first], ["ask", "time"], "page by page")

    def test_what_is_to_be_approved_waits_for_it(self):
        asked = client.responses.create(input=[bash("a", "echo hello")])
        (request,) = asked.output
        self.assertEqual(request.type, "mcp_approval_request")
        approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = client.responses.create(previous_response_id=asked.id, input=[approval])
        self.assertEqual([item.type for item in done.output], ["shell_call", "shell_call_output"])
        always = [{**UNASKED[0], "require_approval": "always"}]
        (request,) = client.responses.create(input=[TIME], tools=always).output
        self.assertEqual((request.type, request.name), ("mcp_approval_request", "get_current_time"))

    def test_the_model_is_given_the_results_in_the_form_of_its_calls(self):
        turn = [bash("a", "echo hello"), TIME, call("none", "no_such_tool")]
        done = client.responses.create(input=turn, tools=UNASKED)
        history = turn + done.toolyard["input"]
        answered = {item["call_id"]: item for item in done.toolyard["input"]}
        self.assertEqual([item["type"] for item in answered.values()], ["shell_call_output", "function_call_output", "function_call_output"])
        self.assertEqual(answered["a"]["output"][0]["stdout"], "hello\n")
        self.assertIn("Error:", answered["none"]["output"])
        # Nothing of the history is left to execute.
        with self.assertRaises(openai.BadRequestError) as refused:
            client.responses.create(input=history, tools=UNASKED)
        self.assertEqual(refused.exception.code, "NO_CALLS")

    def test_tools_of_the_models_vendor_are_passed_over_on_request(self):
        tools = UNASKED + [{"type": "web_search"}]
        done = client.responses.create(input=[TIME], tools=tools, extra_query={"foreign_tools": "ignore"})
        self.assertEqual(done.status, "completed")

    def test_questions_are_answered_one_after_another(self):
        asked = client.responses.create(input=[QUESTION, call("more", "ask_user", '{"question":"And?"}')])
        first = client.responses.create(previous_response_id=asked.id, input=[output("ask", "blue")])
        self.assertEqual(first.status, "in_progress")
        done = client.responses.create(previous_response_id=asked.id, input=[output("more", "red")])
        self.assertEqual((done.id, done.status), (first.id, "completed"))

    def test_a_tool_of_the_request_is_the_clients(self):
        tools = [{"type": "custom", "name": "write"}, {"type": "function", "name": "pick", "parameters": {"type": "object"}}]
        wanted = {"type": "custom_tool_call", "call_id": "a", "name": "write", "input": "some text"}
        events = list(client.responses.create(input=[wanted, call("b", "pick")], tools=tools, stream=True))
        response = self.check(events)
        self.assertEqual([(item.type, item.call_id) for item in response.output], [("custom_tool_call", "a"), ("function_call", "b")])
        self.assertEqual(response.output[0].input, "some text")
        outputs = [{"type": "custom_tool_call_output", "call_id": "a", "output": "written"}, output("b", "this one")]
        self.assertEqual(client.responses.create(previous_response_id=response.id, input=outputs).status, "completed")

    def test_a_response_in_the_background_is_cancelled(self):
        response = client.responses.create(input=[bash("a", "sleep 60")], tools=UNASKED, background=True)
        self.assertEqual(response.status, "in_progress")
        self.assertEqual(client.responses.cancel(response.id).status, "cancelled")
        self.assertEqual(client.responses.retrieve(response.id).status, "cancelled")
        events = list(client.responses.retrieve(response.id, stream=True))
        self.assertEqual((events[-1].type, events[-1].response.status), ("response.incomplete", "cancelled"))

    def test_a_deleted_response_is_not_found(self):
        response = client.responses.create(input=[TIME])
        client.responses.delete(response.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with self.assertRaises(openai.NotFoundError) as refused:
                ask(response.id)
            self.assertEqual(refused.exception.code, "RESPONSE_NOT_FOUND")

    def test_the_same_key_is_the_same_response(self):
        key = {"idempotency-key": f"sdk-{os.getpid()}"}
        first = client.responses.create(input=[TIME], extra_headers=key)
        self.assertEqual(client.responses.create(input=[TIME], extra_headers=key).to_dict(), first.to_dict())
        with self.assertRaises(openai.ConflictError) as refused:
            client.responses.create(input=[QUESTION], extra_headers=key)
        self.assertEqual(refused.exception.code, "REQUEST_ID_TAKEN")

    def test_a_response_that_is_not_to_be_stored_says_so(self):
        response = client.responses.create(input=[TIME], store=False)
        self.assertEqual((response.status, response.to_dict()["store"]), ("completed", False))

    def test_what_cannot_be_had_is_refused_with_a_pointer(self):
        wrong = {
            "/conversation": {"conversation": "conv_1"},
            "/tools/0/type": {"tools": [{"type": "web_search"}]},
        }
        for pointer, asked in wrong.items():
            with self.assertRaises(openai.BadRequestError) as refused:
                client.responses.create(input=[TIME], **asked)
            self.assertEqual((refused.exception.code, refused.exception.param), ("UNSUPPORTED", pointer))
        with self.assertRaises(openai.BadRequestError) as refused:
            client.responses.create(input="What time is it?")
        self.assertEqual(refused.exception.param, "/input")
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve("resp_none")

    def test_events_of_our_own_come_to_who_asks_for_them(self):
        events = list(client.responses.create(input=[TIME], stream=True, extra_query={"events": "all"}))
        ours = [event.type for event in events if event.type.startswith("toolyard:")]
        self.assertEqual(ours[0], "toolyard:attempt.started")
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))


if __name__ == "__main__":
    unittest.main()
