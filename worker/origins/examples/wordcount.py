#!/usr/bin/env python3
"""Counts words, and reports its progress."""
import json, sys
if "--describe" in sys.argv:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    print(json.dumps({"name": "wordcount", "description": "Counts the words of a text.", "output": "ndjson",
                      "effects": {"read_only": True, "open_world": False}, "input_schema": schema}))
    sys.exit()
words = json.loads(sys.stdin.readline())["text"].split()
for number, word in enumerate(words, 1):
    print(json.dumps({"type": "progress", "done": number, "total": len(words), "message": word}), flush=True)
print(json.dumps({"type": "result", "value": {"words": len(words)}}))
