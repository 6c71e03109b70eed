"""A turn as each vendor's SDK has it goes in; what comes out is what that SDK takes as the next message."""

import unittest
import uuid

import anthropic.types
import google.genai.types
import openai.types.chat
import openai.types.responses
from pydantic import TypeAdapter

from yard import batch, client, events


def valid(kind, value):
    """The value, which must be of a type of the SDK, without a member that the type has not."""
    TypeAdapter(kind).validate_python(value, strict=True)
    return value


def anthropic_turn(*calls):
    text = [anthropic.types.TextBlock(type="text", text="Let me look.", citations=None)]
    blocks = [anthropic.types.ToolUseBlock(type="tool_use", id=id, name=name, input=input) for id, name, input in calls]
    message = anthropic.types.Message(
        id="msg_1", type="message", role="assistant", model="claude", content=text + blocks, stop_reason="tool_use",
        usage=anthropic.types.Usage(input_tokens=1, output_tokens=1),
    )
    return message.model_dump(mode="json")


class Anthropic(unittest.TestCase):
    def test_calls_are_answered_in_their_order_in_one_message(self):
        turn = anthropic_turn(
            ("toolu_1", "bash", {"command": "sleep 0.2; echo slow"}),
            ("toolu_2", "no_such_tool", {}),
            ("toolu_3", "get_current_time", {"time_zone": "Asia/Shanghai"}),
        )
        answer = batch(turn)
        self.assertEqual((answer["format"], answer["complete"]), ("anthropic", True))
        [message] = answer["messages"]
        valid(anthropic.types.MessageParam, message)
        results = [valid(anthropic.types.ToolResultBlockParam, block) for block in message["content"]]
        self.assertEqual([result["tool_use_id"] for result in results], ["toolu_1", "toolu_2", "toolu_3"])
        self.assertEqual([result.get("is_error", False) for result in results], [False, True, False])
        self.assertIn("slow", results[0]["content"][0]["text"])

    def test_a_turn_without_calls_needs_no_answer(self):
        answer = batch(anthropic_turn())
        self.assertEqual((answer["messages"], answer["complete"]), ([], True))

    def test_a_call_for_the_client_stays_open_until_it_is_answered(self):
        turn = anthropic_turn(("toolu_1", "ask_user", {"question": "Which one?"}))
        key = str(uuid.uuid4())
        first = batch(turn, key=key)
        self.assertEqual((first["messages"], first["complete"]), ([], False))
        [call] = first["open_calls"]
        self.assertEqual((call["call_id"], call["state"]), ("toolu_1", "CALL_STATE_WAITING_FOR_CLIENT"))
        outputs = {"outputs": [{"call_id": "toolu_1", "result": [{"text": "The blue one."}]}]}
        submitted = client.post(f"/v1/runs/{first['run_id']}/outputs", json=outputs)
        self.assertEqual(submitted.status_code, 200, submitted.text)
        second = batch(turn, key=key)
        self.assertEqual((second["run_id"], second["complete"]), (first["run_id"], True))
        [result] = second["messages"][0]["content"]
        self.assertEqual(result["content"][0]["text"], "The blue one.")

    def test_a_client_that_accepts_events_sees_the_output_first(self):
        turn = anthropic_turn(("toolu_1", "bash", {"command": "echo one; sleep 0.1; echo two"}))
        headers = {"accept": "text/event-stream"}
        with client.stream("POST", "/v1/tool_calls:batch?confirmation=none", json=turn, headers=headers) as response:
            *said, (name, answer) = events(response)
        self.assertTrue(any("call_output" in event for _, event in said))
        self.assertEqual(name, "messages")
        valid(anthropic.types.MessageParam, answer["messages"][0])


class OpenAI(unittest.TestCase):
    def test_chat_completions(self):
        calls = [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo one"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "bash", "arguments": '{"command":'}},
        ]
        completion = openai.types.chat.ChatCompletion.model_validate({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": {
                "role": "assistant", "content": None, "refusal": None, "tool_calls": calls,
            }}],
        })
        for turn in [completion, completion.choices[0].message]:
            answer = batch(turn.model_dump(mode="json"))
            self.assertEqual(answer["format"], "openai-chat")
            messages = [valid(openai.types.chat.ChatCompletionToolMessageParam, it) for it in answer["messages"]]
            self.assertEqual([it["tool_call_id"] for it in messages], ["call_1", "call_2"])
            self.assertIn("one", messages[0]["content"])
            self.assertTrue(messages[1]["content"].startswith("Error: "), messages[1])

    def test_responses(self):
        response = openai.types.responses.Response.model_validate({
            "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt", "status": "completed",
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "output": [
                {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "status": "completed",
                 "arguments": '{"command":"echo one"}'},
                {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "get_current_time",
                 "status": "completed", "arguments": '{"time_zone":"UTC"}'},
            ],
        })
        answer = batch(response.model_dump(mode="json"))
        self.assertEqual(answer["format"], "openai-responses")
        items = [valid(openai.types.responses.response_input_item_param.FunctionCallOutput, it) for it in answer["messages"]]
        self.assertEqual([it["call_id"] for it in items], ["call_1", "call_2"])


class Streams(unittest.TestCase):
    """A turn as an SDK streamed it: the list of its events, with arguments in fragments."""

    def test_chunks_of_chat_completions(self):
        def chunk(finish=None, **delta):
            return openai.types.chat.ChatCompletionChunk.model_validate({
                "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            })

        def part(index, arguments, **first):
            name = first.pop("name", None)
            return {"index": index, "function": {"name": name, "arguments": arguments}, **first}

        chunks = [
            chunk(role="assistant", content=None),
            chunk(tool_calls=[part(0, "", id="call_1", type="function", name="bash")]),
            chunk(tool_calls=[part(1, '{"time_', id="call_2", type="function", name="get_current_time")]),
            chunk(tool_calls=[part(0, '{"command":"ec')]),
            chunk(tool_calls=[part(0, 'ho one"}'), part(1, 'zone":"UTC"}')]),
            chunk(finish="tool_calls"),
        ]
        answer = batch([it.model_dump(mode="json") for it in chunks])
        messages = [valid(openai.types.chat.ChatCompletionToolMessageParam, it) for it in answer["messages"]]
        self.assertEqual([it["tool_call_id"] for it in messages], ["call_1", "call_2"])
        self.assertIn("one", messages[0]["content"])
        # Without its end the last call may be cut off.
        whole = [it.model_dump(mode="json") for it in chunks]
        refused = client.post("/v1/tool_calls:batch", json=whole[:-1])
        self.assertEqual((refused.status_code, refused.json()["reason"]), (400, "MALFORMED"))

    def test_events_of_anthropic(self):
        events = TypeAdapter(list[anthropic.types.RawMessageStreamEvent]).validate_python([
            {"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
                "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
            }},
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"comma'}},
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "input_json_delta", "partial_json": 'nd":"echo one"}'}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
             "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ])
        answer = batch([it.model_dump(mode="json") for it in events])
        [message] = answer["messages"]
        valid(anthropic.types.MessageParam, message)
        self.assertIn("one", message["content"][0]["content"][0]["text"])


class Shared(unittest.TestCase):
    def test_calls_of_a_turn_that_are_sent_one_by_one_have_one_run_whose_messages_are_there_later(self):
        rules = {"confirmation": "CONFIRMATION_NONE"}
        run = client.post("/v1/runs", json={"keep_open": True, "rules": rules}).raise_for_status().json()["run"]["run_id"]
        for id in ["toolu_1", "toolu_2"]:
            turn = anthropic_turn((id, "bash", {"command": f"echo {id}"}))
            answer = client.post("/v1/tool_calls:batch", params={"run": run}, json=turn).raise_for_status().json()
            self.assertEqual((answer["run_id"], answer["complete"]), (run, True))
            [result] = answer["messages"][0]["content"]
            self.assertIn(id, result["content"][0]["text"])
        client.post(f"/v1/runs/{run}/close", json={}).raise_for_status()
        later = client.get(f"/v1/runs/{run}/messages", params={"format": "openai-chat"}).raise_for_status().json()
        messages = [valid(openai.types.chat.ChatCompletionToolMessageParam, it) for it in later["messages"]]
        self.assertEqual([it["tool_call_id"] for it in messages], ["toolu_1", "toolu_2"])
        items = client.get(f"/v1/runs/{run}/messages", params={"format": "openai"}).raise_for_status().json()["messages"]
        for item in items:
            valid(openai.types.responses.response_input_item_param.FunctionCallOutput, item)

    def test_a_conversation_is_complete_with_the_results_that_it_gets(self):
        bash = {"command": "echo one"}
        lost, open = anthropic_turn(("toolu_1", "bash", bash)), anthropic_turn(("toolu_2", "bash", bash), ("toolu_3", "bash", bash))
        say = lambda content: {"role": "user", "content": content}
        result = {"type": "tool_result", "tool_use_id": "toolu_3", "content": "done"}
        messages = [say("Go"), lost, say("Never mind"), open, say([result])]
        answer = batch({"messages": messages})
        self.assertEqual([block["tool_use_id"] for block in answer["messages"][0]["content"]], ["toolu_2"])
        [dangling] = answer["dangling"]
        self.assertEqual(dangling["after"], 1)
        valid(anthropic.types.MessageParam, dangling["messages"][0])


class Gemini(unittest.TestCase):
    def test_generate_content(self):
        part = google.genai.types.Part
        call = google.genai.types.FunctionCall
        response = google.genai.types.GenerateContentResponse(candidates=[
            google.genai.types.Candidate(content=google.genai.types.Content(role="model", parts=[
                part(function_call=call(id="f1", name="bash", args={"command": "echo one"})),
                part(function_call=call(name="no_such_tool", args={})),
            ])),
        ])
        answer = batch(response.model_dump(mode="json", by_alias=True, exclude_none=True))
        self.assertEqual(answer["format"], "gemini")
        [message] = answer["messages"]
        content = google.genai.types.Content.model_validate(message)
        first, second = [part.function_response for part in content.parts]
        self.assertEqual((first.id, first.name, second.name), ("f1", "bash", "no_such_tool"))
        self.assertIn("one", str(first.response["output"]))
        self.assertIn("error", second.response)


class Definitions(unittest.TestCase):
    """What the tools are described as is what the SDKs take."""

    def definitions(self, format):
        return client.get("/v1/tools", params={"format": format}).raise_for_status().json()["tools"]

    def test_each_vendor_gets_its_own(self):
        kinds = {
            "anthropic": anthropic.types.ToolParam,
            "openai": openai.types.responses.FunctionToolParam,
            "openai-chat": openai.types.chat.ChatCompletionToolParam,
        }
        for format, kind in kinds.items():
            definitions = [valid(kind, definition) for definition in self.definitions(format)]
            self.assertGreater(len(definitions), 3)
        for format in ["openai", "openai-chat"]:
            strict = client.get("/v1/tools", params={"format": format, "strict": "true"}).raise_for_status().json()
            functions = [valid(kinds[format], it) for it in strict["tools"]]
            functions = [it.get("function", it) for it in functions]
            self.assertIn(True, [it.get("strict") for it in functions])
            for function in functions:
                self.assertNotEqual(function.get("strict", False), function["name"] in strict["not_strict"])
            self.assertTrue(strict["notes"]["bash"]["needs_approval"])
        for definition in self.definitions("gemini"):
            google.genai.types.FunctionDeclaration.model_validate(definition)
