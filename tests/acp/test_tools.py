"""Each tool, with the editor's help and without."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from acp.schema import ClientCapabilities

from helexa_acp.config import Config, from_table
from helexa_acp.editor import Editor as EditorPort
from helexa_acp.errors import ToolError
from helexa_acp.history import Image, text_of
from helexa_acp.tools import bash, files, search, update_plan
from helexa_acp.tools.base import Outcome, Tool, ToolContext
from tests.acp.bridge import has_ended, until
from tests.acp.editor import BARE, WITH_FILES, WITH_TERMINALS, Editor

CONFIG = from_table({"endpoints": [{"name": "x", "base_url": "http://x"}]}, {})


@dataclass
class Workshop:
    """One tool call at a time, as a session makes it."""

    cwd: Path
    editor: Editor = field(default_factory=Editor)
    capabilities: ClientCapabilities = field(default_factory=lambda: BARE)
    config: Config = CONFIG
    shown: list[Any] = field(default_factory=list)

    async def run(self, tool: Tool, **arguments: Any) -> Outcome:
        client: Any = self.editor
        port = EditorPort(client, self.capabilities, "s")
        context = ToolContext(port, self.cwd, self.config, self._show)
        prepared = await tool.prepare(context, arguments)
        return await prepared.run()

    async def text(self, tool: Tool, **arguments: Any) -> str:
        outcome = await self.run(tool, **arguments)
        return text_of(outcome.parts)

    async def _show(self, contents: list[Any]) -> None:
        self.shown += contents


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    for process in workshop.editor.terminals.values():
        if process.returncode is None:
            process.kill()


# Files.


async def test_a_file_by_lines(shop: Workshop) -> None:
    (shop.cwd / "a").write_text("1\n2\n3\n4\n")
    assert await shop.text(files.READ_FILE, path="a") == "1\n2\n3\n4\n"
    part = await shop.text(files.READ_FILE, path="a", line=2, limit=2)
    assert part == "2\n3\n\n[lines 2 to 3 of 4; continue with line=4]"
    assert await shop.text(files.READ_FILE, path="a", line="4") == "4\n"
    with pytest.raises(ToolError, match="past the end"):
        await shop.run(files.READ_FILE, path="a", line=5)
    with pytest.raises(ToolError, match=">= 1"):
        await shop.run(files.READ_FILE, path="a", line=0)
    with pytest.raises(ToolError, match="Expected `str`, got `array`"):
        await shop.run(files.READ_FILE, path=["a"])


async def test_a_long_file_is_read_in_parts(shop: Workshop) -> None:
    (shop.cwd / "a").write_text(("y" * 99 + "\n") * 2000)
    first = await shop.text(files.READ_FILE, path="a")
    assert first.endswith("[lines 1 to 1000 of 2000; continue with line=1001]")
    (shop.cwd / "b").write_text("x" * 300_000)
    assert "the rest of this line was left out" in await shop.text(files.READ_FILE, path="b")


async def test_what_is_no_text_is_refused(shop: Workshop) -> None:
    (shop.cwd / "binary").write_bytes(b"\0\1")
    os.mkfifo(shop.cwd / "pipe")
    for name, why in {
        "binary": "not a text file",
        "pipe": "not a regular file",
        ".": "Is a directory",
        "none": "No such file",
        "/dev/zero": "not a regular file",
    }.items():
        with pytest.raises(ToolError, match=why):
            await shop.run(files.READ_FILE, path=name)


async def test_an_image_is_looked_at(shop: Workshop) -> None:
    (shop.cwd / "a.PNG").write_bytes(b"png")
    outcome = await shop.run(files.READ_FILE, path="a.PNG")
    assert outcome.parts[1] == Image("image/png", base64.b64encode(b"png").decode())


async def test_the_editors_buffer_comes_first(shop: Workshop) -> None:
    shop.capabilities = WITH_FILES
    (shop.cwd / "a").write_text("saved")
    (shop.cwd / "b").write_text("on the disk alone")
    shop.editor.unsaved[str(shop.cwd / "a")] = "not saved yet"
    assert await shop.text(files.READ_FILE, path="a") == "not saved yet"
    assert await shop.text(files.READ_FILE, path="b") == "on the disk alone"
    await shop.run(files.EDIT_FILE, path="a", old_text="not", new_text="almost")
    assert (shop.cwd / "a").read_text() == "almost saved yet"


async def test_a_file_is_written_whole(shop: Workshop) -> None:
    outcome = await shop.run(files.WRITE_FILE, path="deep/er/a", content="one\r\ntwo\n")
    assert (shop.cwd / "deep/er/a").read_bytes() == b"one\r\ntwo\n"
    assert outcome.shown[0].old_text is None
    script = shop.cwd / "script"
    script.write_text("old")
    script.chmod(0o755)
    (shop.cwd / "link").symlink_to(script)
    outcome = await shop.run(files.WRITE_FILE, path="link", content="new")
    assert (outcome.shown[0].old_text, outcome.shown[0].new_text) == ("old", "new")
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o755)
    assert (shop.cwd / "link").is_symlink()
    assert sorted(path.name for path in shop.cwd.iterdir()) == ["deep", "link", "script"]
    with pytest.raises(ToolError, match="not a regular file"):
        await shop.run(files.WRITE_FILE, path="deep", content="x")
    with pytest.raises(ToolError):
        await shop.run(files.WRITE_FILE, path="script/x", content="x")


async def test_an_edit_needs_exactly_one_match(shop: Workshop) -> None:
    path = shop.cwd / "a"
    path.write_text("a b a")
    for old, why in {"c": "not in the file", "a": "2 times", "": "empty", "b": "the same"}.items():
        with pytest.raises(ToolError, match=why):
            await shop.run(files.EDIT_FILE, path="a", old_text=old, new_text="b")
    await shop.run(files.EDIT_FILE, path="a", old_text="b a", new_text="c")
    assert path.read_text() == "a c"


async def test_a_folder_is_listed(shop: Workshop) -> None:
    (shop.cwd / "sub").mkdir()
    (shop.cwd / "b.txt").touch()
    (shop.cwd / ".hidden").touch()
    assert await shop.text(files.LIST_DIR, path=".") == ".hidden\nb.txt\nsub/"
    assert await shop.text(files.LIST_DIR, path="sub") == "[empty]"
    with pytest.raises(ToolError, match="Not a directory"):
        await shop.run(files.LIST_DIR, path="b.txt")


# Search.


async def test_lines_are_found(shop: Workshop) -> None:
    (shop.cwd / "a.py").write_text("def f():\n    return Needle\n")
    (shop.cwd / "sub").mkdir()
    (shop.cwd / "sub" / "b.txt").write_text("a needle\n")
    (shop.cwd / "node_modules").mkdir()
    (shop.cwd / "node_modules" / "c.txt").write_text("needle")
    (shop.cwd / "binary").write_bytes(b"\0needle")
    assert await shop.text(search.SEARCH, pattern="needle") == "sub/b.txt:1: a needle"
    both = await shop.text(search.SEARCH, pattern="needle", ignore_case=True)
    assert both == "a.py:2: return Needle\nsub/b.txt:1: a needle"
    assert await shop.text(search.SEARCH, pattern="e+dle", glob="*.py") == "a.py:2: return Needle"
    assert await shop.text(search.SEARCH, pattern="needle", path="sub/b.txt") == "b.txt:1: a needle"
    assert await shop.text(search.SEARCH, pattern="nothing") == "[no line matches]"
    for arguments, why in (
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": "x", "path": "none"}, "is not there"),
    ):
        with pytest.raises(ToolError, match=why):
            await shop.run(search.SEARCH, **arguments)


async def test_what_git_ignores_is_left_out(shop: Workshop) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=shop.cwd, check=True)
    (shop.cwd / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "seen"):
        (shop.cwd / name).write_text("needle\n")
    assert await shop.text(search.SEARCH, pattern="needle") == "seen:1: needle"


async def test_a_pattern_that_never_ends_is_ended(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TIMEOUT_S", 0.5)
    (shop.cwd / "a").write_text("a" * 60 + "!\n")
    with pytest.raises(ToolError, match="took over"):
        await shop.run(search.SEARCH, pattern="(a+)+$")


# Commands.


@pytest.mark.parametrize("capabilities", [BARE, WITH_TERMINALS], ids=["here", "terminal"])
async def test_a_command(shop: Workshop, capabilities: ClientCapabilities) -> None:
    shop.capabilities = capabilities
    (shop.cwd / "sub").mkdir()
    outcome = await shop.run(bash.BASH, command="echo out; echo err >&2; pwd", cwd="sub")
    assert text_of(outcome.parts) == f"out\nerr\n{shop.cwd}/sub"
    assert not outcome.is_error
    outcome = await shop.run(bash.BASH, command="echo no; exit 3")
    assert (text_of(outcome.parts), outcome.is_error) == ("no\n[exit code 3]", True)
    assert await shop.text(bash.BASH, command="true") == "[no output]"
    if capabilities is WITH_TERMINALS:
        assert len(shop.shown) == 3
        assert shop.editor.released == [f"terminal-{i}" for i in range(3)]
        assert outcome.shown[0].terminal_id == "terminal-1"


async def test_a_command_has_no_input(shop: Workshop) -> None:
    assert await shop.text(bash.BASH, command="cat; echo done") == "done"


@pytest.mark.parametrize("capabilities", [BARE, WITH_TERMINALS], ids=["here", "terminal"])
async def test_a_command_that_takes_too_long(
    shop: Workshop, capabilities: ClientCapabilities
) -> None:
    shop.capabilities = capabilities
    table = {"endpoints": [{"name": "x", "base_url": "http://x"}], "bash_timeout_s": 0.5}
    shop.config = from_table(table, {})
    outcome = await shop.run(bash.BASH, command="exec sleep 600")
    assert outcome.is_error
    assert "[ended after 0.5 s]" in text_of(outcome.parts)


async def test_what_it_leaves_in_the_background_is_ended(shop: Workshop) -> None:
    text = await shop.text(bash.BASH, command="sleep 600 & echo $!")
    await until(lambda: has_ended(text.strip()))


async def test_output_is_bounded(shop: Workshop) -> None:
    text = await shop.text(bash.BASH, command="yes 123456789 | head -c 1000000; echo end")
    assert len(text) < 140_000
    assert text.endswith("end\n[the beginning of the output was left out]")


async def test_a_terminal_is_released_when_cancelled(shop: Workshop) -> None:
    shop.capabilities = WITH_TERMINALS
    running = asyncio.create_task(shop.run(bash.BASH, command="exec sleep 600"))
    await until(lambda: shop.shown)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert shop.editor.killed == shop.editor.released == ["terminal-0"]


# Plans.


async def test_a_plan_is_shown(shop: Workshop) -> None:
    entries = ["think", {"content": "do", "status": "in_progress", "priority": "high"}]
    await shop.run(update_plan.UPDATE_PLAN, entries=entries)
    (plan,) = shop.editor.updates_of("plan")
    assert [(one.content, one.status, one.priority) for one in plan.entries] == [
        ("think", "pending", "medium"),
        ("do", "in_progress", "high"),
    ]
    for bad in ("x", [1], [{"content": "x", "status": "later"}], None):
        with pytest.raises(ToolError):
            await shop.run(update_plan.UPDATE_PLAN, entries=bad)
