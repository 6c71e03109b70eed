"""A small MCP server on standard input and output (2025-11-25), which misbehaves on request.

The first argument is how it behaves from the beginning; the tools misbehave when they are called.
"""

import json
import os
import subprocess
import sys
import threading
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else "well"
LOCK = threading.Lock()
OPEN = {"type": "object"}
# Of a tool that does not reach the world, whose calls need no approval.
HERE = {"openWorldHint": False}
cancelled = set()
answers = {}
extra = []


def send(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tool(name, hints=None, schema=None, **more):
    return {"name": name, "inputSchema": schema or OPEN, "annotations": hints or {}, **more}


def tools():
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    listed = [
        tool("echo", {"readOnlyHint": True}, text, title="Echo", description="Gives the text back."),
        tool("fail"), tool("invalid"), tool("sleep", {"idempotentHint": True, **HERE}), tool("die", HERE),
        tool("die_again", {"readOnlyHint": True}), tool("hundred_megabytes", {"readOnlyHint": True}),
        tool("flood"), tool("grow"), tool("child"), tool("ask"), tool("environment", HERE), tool("nonsense"),
        tool("task_dies", HERE), tool("ask_late"), tool("write"),
    ]
    if MODE == "liar":
        listed += [
            tool("not an object", schema={"type": "array"}),
            tool("foreign", schema={"type": "object", "$ref": "https://example.invalid/schema"}),
            tool("large", schema={"type": "object", "description": "x" * 100_000}),
            tool("old", schema={"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}),
            {"name": "no schema"}, {"name": 7, "inputSchema": OPEN}, "no tool at all",
            tool("echo", description="The same name again."),
        ]
    return listed + extra


def call(request, name, arguments, token):
    def result(text, **more):
        send({"id": request, "result": {"content": [{"type": "text", "text": text}], **more}})

    if name == "echo":
        result(arguments["text"])
    elif name == "fail":
        result("the disk is full", isError=True)
    elif name == "invalid":
        send({"id": request, "error": {"code": -32602, "message": "text is too short"}})
    elif name == "sleep":
        with open(arguments["note"], "a") as note:
            note.write(f"started by {os.getpid()}\n")
        for step in range(600):
            if request in cancelled:
                with open(arguments["note"], "a") as note:
                    note.write("cancelled\n")
                return
            send({"method": "notifications/progress",
                  "params": {"progressToken": token, "progress": step, "total": 600, "message": f"step {step}"}})
            time.sleep(0.1)
        result("slept")
    elif name == "die":
        print("I cannot go on", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "task_dies":
        with open(arguments["note"], "a") as note:
            note.write("called\n")
        # The next question about it comes when the server is gone.
        send({"id": request, "result": {"task": {"taskId": "t", "status": "working", "pollInterval": 500}}})
        time.sleep(0.1)
        print("token=abc", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "die_again":
        if not os.path.exists(arguments["note"]):
            open(arguments["note"], "w").close()
            os._exit(3)
        result("alive again")
    elif name == "hundred_megabytes":
        result("x" * 100_000_000)
    elif name == "flood":
        for step in range(20_000):
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
            send({"method": "notifications/message", "params": {"level": "info", "data": "noise"}})
            print("noise " * 20, file=sys.stderr)
        result("flooded")
    elif name == "grow":
        extra.append(tool("grown", {"readOnlyHint": True}))
        send({"method": "notifications/tools/list_changed"})
        time.sleep(2)
        result("grown while it ran")
    elif name == "grown":
        result("I am new")
    elif name == "child":
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        result(f"{os.getpid()} {child.pid}")
    elif name == "ask":
        send({"id": "q1", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        send({"id": "q2", "method": "roots/list"})
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        send({"id": "q3", "method": "elicitation/create",
              "params": {"mode": "form", "message": "Who are you?", "requestedSchema": schema}})
        while len(answers) < 3:
            time.sleep(0.01)
        result(json.dumps({key: answers[key] for key in sorted(answers)}))
    elif name == "write":
        try:
            with open(arguments["path"], "w") as file:
                file.write("x")
            result(os.path.abspath(arguments["path"]))
        except OSError as error:
            result(str(error), isError=True)
    elif name == "ask_late":
        with open(arguments["note"], "a") as note:
            note.write("started\n")
        while request not in cancelled:
            time.sleep(0.01)
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        send({"id": "late", "method": "elicitation/create",
              "params": {"mode": "form", "message": "Who are you?", "requestedSchema": schema}})
        while "late" not in answers:
            time.sleep(0.01)
        with open(arguments["note"], "a") as note:
            note.write(json.dumps(answers["late"]) + "\n")
    elif name == "environment":
        result(json.dumps(dict(os.environ)))
    elif name == "nonsense":
        with LOCK:
            sys.stdout.write("this is no JSON\n[1, 2]\n{\"jsonrpc\": \"2.0\"}\n")
            sys.stdout.flush()
        send({"id": request, "result": {"content": "not a list"}})


def main():
    if MODE == "no_mcp":
        print("Welcome! Type help for help.", flush=True)
    if MODE == "dies_later":
        try:
            open("started", "x").close()
        except FileExistsError:
            print("token=abc", file=sys.stderr, flush=True)
            sys.exit(1)
    if MODE == "broken":
        print("no such configuration: weather.toml", file=sys.stderr, flush=True)
        sys.exit(1)
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if MODE in ("silent", "no_mcp"):
            continue
        method, request, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            answers[request] = message.get("result", message.get("error"))
        elif method == "initialize":
            send({"id": request, "result": {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}, "logging": {}},
                "serverInfo": {"name": "test", "version": "1"}}})
        elif method == "tools/list":
            if MODE == "circle":
                send({"id": request, "result": {"tools": [], "nextCursor": "again"}})
                continue
            listed = tools()
            start = int(params.get("cursor") or 0)
            page = {"tools": listed[start:start + 5]}
            if start + 5 < len(listed):
                page["nextCursor"] = str(start + 5)
            send({"id": request, "result": page})
        elif method == "tools/call":
            token = (params.get("_meta") or {}).get("progressToken")
            arguments = (request, params["name"], params.get("arguments") or {}, token)
            threading.Thread(target=call, args=arguments, daemon=True).start()
        elif method == "notifications/cancelled":
            cancelled.add(params.get("requestId"))
        elif request is not None:
            send({"id": request, "error": {"code": -32601, "message": f"Method not found: {method}"}})


main()
