"""The Toolyard that is tested, over plain HTTP."""

import json
import os

import httpx2

client = httpx2.Client(base_url=os.environ["TOOLYARD_URL"], timeout=60)


def batch(turn, **query):
    """Sends an assistant turn and gives the answer to it."""
    key = query.pop("key", None)
    headers = {"idempotency-key": key} if key else {}
    # Who sends the turn has agreed to its calls.
    query = {"confirmation": "none", **query}
    response = client.post("/v1/tool_calls:batch", params=query, headers=headers, json=turn)
    assert response.status_code == 200, response.text
    return response.json()


def events(response):
    """The events of a stream, each as its name and its data."""
    for block in response.read().decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            yield fields.get("event"), json.loads(fields["data"])
