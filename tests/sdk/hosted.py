"""A worker with the tools that have backends, and a scripted HTTP server behind them."""

import base64
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

import yard

IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(90_000)
PARTIAL = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
TOOLS = ("web_search", "file_search", "code_interpreter", "image_generation")


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/search":
            pages = [{"title": f"Page {n}", "url": f"https://pages.example/{n}", "content": asked["query"]} for n in (1, 2)]
            self.answer("application/json", json.dumps({"answer": "It is round [1].", "results": pages}))
        elif self.path == "/documents":
            passage = {"file_id": "f1", "filename": "moon.md", "score": 0.5, "text": asked["query"]}
            self.answer("application/json", json.dumps({"results": [passage]}))
        else:
            partial = {"type": "image_generation.partial_image", "partial_image_index": 0, "b64_json": text(PARTIAL)}
            completed = {"type": "image_generation.completed", "b64_json": text(IMAGE), "size": "1024x1024"}
            events = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (partial, completed))
            self.answer("text/event-stream", events)

    def answer(self, media_type, body):
        body = body.encode()
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def text(data):
    return base64.b64encode(data).decode()


class Hosted:
    """Starts with `with`, and ends with its block."""

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.folder = tempfile.TemporaryDirectory()
        url = f"http://127.0.0.1:{self.server.server_port}"
        file = pathlib.Path(self.folder.name) / "backends.toml"
        file.write_text(
            f'[web_search]\nurl = "{url}/search"\n[file_search]\nurl = "{url}/documents"\n'
            f'[image_generation]\nurl = "{url}/v1/images/generations"\n[code_interpreter]\n'
            '[egress]\naddresses = ["127.0.0.1"]\n'
        )
        program = [os.environ["TOOLYARD_PROGRAM"], "worker", "--pool", "backends", "--backends", str(file)]
        self.worker = subprocess.Popen(program)
        give_up = time.monotonic() + 60
        while missing := set(TOOLS) - self.listed():
            assert self.worker.poll() is None and time.monotonic() < give_up, f"not hosted: {missing}"
            time.sleep(0.1)
        return self

    def listed(self):
        return {tool["name"] for tool in yard.client.get("/v1/tools").json()["tools"]}

    def __exit__(self, *_):
        self.worker.terminate()
        self.worker.wait()
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()
