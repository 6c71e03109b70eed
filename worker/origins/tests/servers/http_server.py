"""A small MCP server over Streamable HTTP (2026-07-28) on a free port, which it prints. It wants the token "t0ken"."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "2026-07-28"
OPEN = {"type": "object"}


def tool(name):
    return {"name": name, "inputSchema": OPEN, "annotations": {"readOnlyHint": True}}


TOOLS = [tool(name) for name in ("echo", "meta", "busy", "hundred_megabytes", "hundred_megabytes_of_events", "sleep",
                                 "task", "input")]
polls = {}
cancelled = []


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def plain(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reply(self, message, status=200):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.plain(405)

    do_DELETE = do_GET

    def event(self, message):
        data = f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != "Bearer t0ken":
            self.plain(401, WWW_Authenticate="Bearer")
            return
        method, request, params = body.get("method"), body.get("id"), body.get("params") or {}

        def result(**fields):
            self.reply({"id": request, "result": {"resultType": "complete", **fields}})

        def text(text):
            result(content=[{"type": "text", "text": text}])

        if request is None:
            self.plain(202)
        elif method == "server/discover":
            result(supportedVersions=[VERSION], ttlMs=0, cacheScope="private",
                   capabilities={"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
        elif method == "tools/list":
            result(tools=TOOLS, ttlMs=0, cacheScope="private")
        elif method == "tasks/get":
            polls[params["taskId"]] = polls.get(params["taskId"], 0) + 1
            state = {"taskId": params["taskId"], "createdAt": "2026-01-01T00:00:00Z", "ttlMs": None,
                     "lastUpdatedAt": "2026-01-01T00:00:00Z", "pollIntervalMs": 50}
            if polls[params["taskId"]] < 3:
                result(status="working", statusMessage=f"poll {polls[params['taskId']]}", **state)
            else:
                done = {"content": [{"type": "text", "text": "the task is done"}], "isError": False}
                result(status="completed", result=done, **state)
        elif method == "tools/call":
            self.call(params, request, text)
        else:
            self.reply({"id": request, "error": {"code": -32601, "message": "Method not found"}}, 404)

    def call(self, params, request, text):
        name, arguments = params["name"], params.get("arguments") or {}
        if name == "echo":
            text(arguments.get("text", ""))
        elif name == "meta":
            text(json.dumps(params.get("_meta")))
        elif name == "busy":
            self.plain(429, Retry_After="7")
        elif name == "hundred_megabytes":
            text("x" * 100_000_000)
        elif name == "hundred_megabytes_of_events":
            self.events()
            self.event({"id": request, "result": {"content": [{"type": "text", "text": "x" * 100_000_000}]}})
        elif name == "sleep":
            self.events()
            token = params["_meta"]["progressToken"]
            try:
                for step in range(600):
                    progress = {"progressToken": token, "progress": step, "total": 600}
                    self.event({"method": "notifications/progress", "params": progress})
                    time.sleep(0.1)
            except OSError:
                with open(arguments["note"], "w") as note:
                    note.write("cancelled")
        elif name == "task":
            self.reply({"id": request, "result": {
                "resultType": "task", "taskId": "task-1", "status": "working", "createdAt": "2026-01-01T00:00:00Z",
                "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None, "pollIntervalMs": 50}})
        elif name == "input":
            answers = params.get("inputResponses")
            if answers is None:
                schema = {"type": "object", "properties": {"name": {"type": "string"}}}
                ask = {"method": "elicitation/create",
                       "params": {"mode": "form", "message": "Who are you?", "requestedSchema": schema}}
                self.reply({"id": request, "result": {
                    "resultType": "input_required", "inputRequests": {"who": ask}, "requestState": "sealed"}})
            else:
                text(json.dumps({"answers": answers, "state": params.get("requestState")}))


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
print(server.server_address[1], flush=True)
sys.stdout.flush()
server.serve_forever()
