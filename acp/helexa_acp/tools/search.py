"""search: lines that match a regular expression, in the files of a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from helexa_acp.errors import ToolError
from helexa_acp.modes import Action
from helexa_acp.processes import run_locally
from helexa_acp.tools.base import Outcome, Prepared, ToolContext, absolute, text_outcome, tool

TIMEOUT_S = 30.0
PROGRAM = str(Path(__file__).with_name("searching.py"))


class Parameters(Struct):
    """Finds the lines that match a regular expression, in all text files of a folder or in one
    file. Leaves out what git ignores."""

    pattern: Annotated[str, Meta(description="A Python regular expression.")]
    path: Annotated[str, Meta(description="Where to look, if not everywhere.")] = "."
    glob: Annotated[str, Meta(description="Only files of such names, as *.py.")] = ""
    ignore_case: bool = False


async def prepare(context: ToolContext, given: Parameters) -> Prepared:
    folder = absolute(given.path, context.cwd)

    async def run() -> Outcome:
        if not folder.exists():
            raise ToolError(f"{folder} is not there")
        asked = [given.pattern, str(folder), given.glob, given.ignore_case]
        command = [sys.executable, "-I", PROGRAM, json.dumps(asked)]
        output, is_late = await run_locally(command, context.cwd, TIMEOUT_S)
        if is_late:
            raise ToolError(f"the search took over {TIMEOUT_S:g} s; narrow the pattern or the path")
        if output.code != 0:
            raise ToolError(output.text.strip() or "the search failed")
        return text_outcome(output.text.rstrip("\n") or "[no line matches]")

    return Prepared(f"Search for `{given.pattern}` in {folder}", run, (folder,))


SEARCH = tool("search", "search", Action.READ, Parameters, prepare)
