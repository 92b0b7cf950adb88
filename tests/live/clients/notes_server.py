"""An MCP server over standard input and output: ``python notes_server.py NOTE`` has one tool, which
reads that file. Run by agents; standard library only.

Source: https://modelcontextprotocol.io/specification, tools and the stdio transport.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NAME = "notes"
TOOL = "read"


def answer(method: str, params: dict[str, Any], note: Path) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": NAME, "version": "1"},
                "instructions": "One note is kept here.",
            }
        case "tools/list":
            schema = {"type": "object", "properties": {}}
            tool = {"name": TOOL, "description": "Read the note.", "inputSchema": schema}
            return {"tools": [tool]}
        case "tools/call":
            return {"content": [{"type": "text", "text": note.read_text()}]}
    return {}


def main() -> None:
    note = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params", {}), note)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
