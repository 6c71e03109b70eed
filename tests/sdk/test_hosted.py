"""Calls of tools with backends, as the vendor's SDK reads their items and events."""

import json
import os
import unittest

import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent

import yard
from hosted import IMAGE, PARTIAL, TOOLS, Hosted, text

client = openai.OpenAI(base_url=os.environ["TOOLYARD_URL"] + "/v1", api_key="none", max_retries=0, timeout=60)
documented = pydantic.TypeAdapter(ResponseStreamEvent)
ARGUMENTS = {
    "web_search": {"query": "moon"},
    "file_search": {"query": "moon"},
    "code_interpreter": {"code": "print('one')"},
    "image_generation": {"prompt": "a moon", "partial_images": 1},
}
INPUT = [{"type": "function_call", "call_id": name, "name": name, "arguments": json.dumps(ARGUMENTS[name])} for name in TOOLS]
# Without it calls of tools that reach beyond the system await approval.
UNASKED = [{"type": "mcp", "server_label": "toolyard", "require_approval": "never"}]


class Items(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(Hosted())

    def test_the_stream_has_the_documented_events_of_each_item_type(self):
        with client.responses.stream(input=INPUT, tools=UNASKED, store=False, model="none") as stream:
            events = list(stream)
            final = stream.get_final_response()
        for event in events:
            documented.validate_python(event.to_dict())
        of_call = lambda kind: [event.type.removeprefix(f"response.{kind}") for event in events if event.type.startswith(f"response.{kind}")]
        self.assertEqual(of_call("web_search_call"), [".in_progress", ".searching", ".completed"])
        self.assertEqual(of_call("file_search_call"), [".in_progress", ".searching", ".completed"])
        code = [".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed"]
        self.assertEqual(of_call("code_interpreter_call"), code)
        image = [".in_progress", ".generating", ".partial_image", ".completed"]
        self.assertEqual(of_call("image_generation_call"), image)
        partial = next(event for event in events if event.type == "response.image_generation_call.partial_image")
        self.assertEqual((partial.partial_image_index, partial.partial_image_b64), (0, text(PARTIAL)))
        Response.model_validate(final.to_dict())
        items = {item.type: item for item in final.output}
        self.assertEqual({item.status for item in final.output}, {"completed"})
        sources = [source.url for source in items["web_search_call"].action.sources]
        self.assertEqual((items["web_search_call"].action.query, sources[1]), ("moon", "https://pages.example/2"))
        self.assertEqual((items["file_search_call"].queries, items["file_search_call"].results[0].filename), (["moon"], "moon.md"))
        self.assertEqual(items["code_interpreter_call"].code, ARGUMENTS["code_interpreter"]["code"])
        self.assertEqual([output.logs for output in items["code_interpreter_call"].outputs], ["one\n"])
        self.assertEqual(items["image_generation_call"].result, text(IMAGE))

    def test_a_stored_image_is_inline_and_is_read_by_its_url(self):
        response = client.responses.create(input=INPUT[-1:], tools=UNASKED)
        (item,) = response.output
        self.assertEqual((item.type, item.status, item.result), ("image_generation_call", "completed", text(IMAGE)))
        self.assertEqual(yard.client.get(item.to_dict()["toolyard"]["url"]).content, IMAGE)


if __name__ == "__main__":
    unittest.main()
