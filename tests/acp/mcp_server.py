"""An MCP server over stdio: python mcp_server.py [what it does wrong]. ``NAME NOTE``: it has one
tool, which reads that file. Run by agents too; standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
NOTES, READ = "notes", "read"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"serverInfo": {"name": NOTES, "version": "1"}, "capabilities": {"tools": {}}}
        return {"protocolVersion": params["protocolVersion"], **info}
    if sys.argv[1:2] == [NOTES]:
        schema = {"type": "object", "properties": {}}
        tool = {"name": READ, "description": "Read the note.", "inputSchema": schema}
        if method == "tools/list":
            return {"tools": [tool]}
        return {"content": [{"type": "text", "text": Path(sys.argv[2]).read_text()}]}
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
        if message.get("params", {}).get("name") == "wait":
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if fault == "refuses":
            reply["error"] = {"code": -1, "message": "not today"}
        else:
            reply["result"] = answer(message["method"], message.get("params", {}))
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
