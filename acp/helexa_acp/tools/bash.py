"""bash: a command through ``sh -c``, in the editor's terminal where it has one."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated

from acp import tool_terminal_ref
from msgspec import Meta, Struct

from helexa_acp.editor import expect
from helexa_acp.errors import ToolError
from helexa_acp.modes import Action
from helexa_acp.processes import OUTPUT_LIMIT_BYTES, CommandOutput, run_locally
from helexa_acp.tools.base import Outcome, Prepared, ToolContext, absolute, text_outcome, tool


class Parameters(Struct):
    """Runs a command with sh -c and returns what it printed. It has no input."""

    command: Annotated[str, Meta(description="The command line.")]
    cwd: Annotated[str, Meta(description="Where to run it, if elsewhere.")] = "."


async def prepare(context: ToolContext, given: Parameters) -> Prepared:
    command, cwd = given.command, absolute(given.cwd, context.cwd)
    if not command.strip() or "\0" in command:
        raise ToolError("the command is empty or holds a NUL character")

    async def run() -> Outcome:
        if context.editor.has_terminals:
            return await _in_terminal(context, command, cwd)
        timeout_s = context.config.bash_timeout_s
        output, is_late = await run_locally(["sh", "-c", command], cwd, timeout_s)
        return text_outcome(
            described(output, timeout_s if is_late else None), is_error=output.code != 0
        )

    where = "" if cwd == context.cwd else f" (in {cwd})"
    return Prepared(
        f"`{command}`{where}",
        run,
        remembers=f"bash {cwd} {command}",
        remembered_as="Always allow this very command, this session",
    )


async def _in_terminal(context: ToolContext, command: str, cwd: Path) -> Outcome:
    """The terminal is always released, which also ends its processes."""
    client, session_id = context.editor.client, context.editor.session_id
    opening = client.create_terminal(
        session_id=session_id,
        command="sh",
        args=["-c", command],
        cwd=str(cwd),
        output_byte_limit=OUTPUT_LIMIT_BYTES,
    )
    terminal = (await expect(opening, "the editor opened no terminal")).terminal_id
    shown = tool_terminal_ref(terminal)
    named = {"session_id": session_id, "terminal_id": terminal}
    timeout_s = context.config.bash_timeout_s
    ended, late_after_s = None, None
    try:
        await context.show([shown])
        try:
            async with asyncio.timeout(timeout_s):
                waiting = client.wait_for_terminal_exit(**named)
                ended = await expect(waiting, "the editor lost the terminal")
        except TimeoutError:
            late_after_s = timeout_s
            await expect(client.kill_terminal(**named), "the editor did not end the command")
        response = await expect(client.terminal_output(**named), "the editor sent no output")
    except asyncio.CancelledError:
        with contextlib.suppress(ToolError):
            await expect(client.kill_terminal(**named), "the editor did not end the command")
        raise
    finally:
        with contextlib.suppress(Exception):  # a disconnected editor has no terminals
            await client.release_terminal(**named)
    status = response.exit_status or ended  # some editors report it in one place alone
    output = CommandOutput(
        response.output,
        response.truncated,
        status.exit_code if status else None,
        status.signal if status else None,
    )
    text = described(output, late_after_s)
    return text_outcome(text, shown, is_error=output.code != 0)


def described(output: CommandOutput, late_after_s: float | None) -> str:
    """The model's text: the output, and the exit status."""
    notes = []
    if output.is_truncated:
        notes.append("the beginning of the output was left out")
    if late_after_s is not None:
        notes.append(f"ended after {late_after_s:g} s")
    elif output.signal:
        notes.append(f"ended by signal {output.signal}")
    elif output.code:
        notes.append(f"exit code {output.code}")
    elif not output.text:
        notes.append("no output")
    note = f"[{'; '.join(notes)}]" if notes else ""
    return "\n".join(part for part in (output.text.rstrip("\n"), note) if part)


BASH = tool("bash", "execute", Action.EXECUTE, Parameters, prepare)
