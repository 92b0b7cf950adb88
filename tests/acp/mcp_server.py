"""An MCP server for tests, over stdio: python mcp_server.py [what it does wrong]."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "description": "Adds.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "draw"},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "wait", "inputSchema": {"type": "object"}},
    {"name": 5},
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
    if method == "tools/list":
        first = "cursor" not in params
        return {"tools": TOOLS[:2], "nextCursor": "2"} if first else {"tools": TOOLS[2:]}
    name, arguments = params["name"], params["arguments"]
    if name == "add":
        text = f"{arguments['a'] + arguments['b']}"
        return {"content": [{"type": "text", "text": text}]}
    if name == "draw":
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return {"content": [image, {"type": "audio"}]}
    return {"content": [{"type": "text", "text": "it broke"}], "isError": True}


def main() -> None:
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    if fault == "dies":
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            print("cancelled", file=sys.stderr, flush=True)
        if "id" not in message or "method" not in message:
            continue
        if fault == "noise":
            print("not json\n[]\n" + json.dumps({"jsonrpc": "2.0", "id": 9, "method": "ping"}))
        if message["params"].get("name") == "wait":
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if fault == "refuses":
            reply["error"] = {"code": -1, "message": "not today"}
        else:
            reply["result"] = answer(message["method"], message["params"])
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
