"""search: lines that match a regular expression, in the files of a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from helexa_acp.errors import ToolError
from helexa_acp.modes import Action
from helexa_acp.tools.base import (
    Arguments,
    Outcome,
    Preview,
    Tool,
    ToolContext,
    schema,
    take_optional_text,
    take_path,
    take_text,
    text_outcome,
)
from helexa_acp.tools.bash import run_locally
from helexa_acp.wire import ToolSpec

TIMEOUT_S = 30.0


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    pattern, folder = take_text(arguments, "pattern"), _folder(context, arguments)
    return Preview(f"Search for `{pattern}` in {folder}", (folder,))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    folder = _folder(context, arguments)
    if not folder.exists():
        raise ToolError(f"{folder} is not there")
    asked = {
        "pattern": take_text(arguments, "pattern"),
        "folder": str(folder),
        "glob": take_optional_text(arguments, "glob"),
        "ignores_case": arguments.get("ignore_case") is True,
    }
    program = str(Path(__file__).with_name("searching.py"))
    command = [sys.executable, "-I", program, json.dumps(asked)]
    output, is_late = await run_locally(command, context.cwd, TIMEOUT_S)
    if is_late:
        raise ToolError(f"the search took over {TIMEOUT_S:g} s; narrow the pattern or the path")
    if output.exit.code != 0:
        raise ToolError(output.text.strip() or "the search failed")
    return text_outcome(output.text.rstrip("\n") or "[no line matches]")


def _folder(context: ToolContext, arguments: Arguments) -> Path:
    if take_optional_text(arguments, "path") is None:
        return context.cwd
    return take_path(arguments, "path", context.cwd)


TOOL = Tool(
    ToolSpec(
        name="search",
        description="Finds the lines that match a regular expression, in all text files of a "
        "folder or in one file. Leaves out what git ignores.",
        parameters=schema(
            {
                "pattern": {"type": "string", "description": "A Python regular expression."},
                "path": {"type": "string", "description": "Where to look, if not everywhere."},
                "glob": {"type": "string", "description": "Only files of such names, as *.py."},
                "ignore_case": {"type": "boolean"},
            },
            "pattern",
        ),
    ),
    "search",
    Action.READ,
    preview,
    run,
)
