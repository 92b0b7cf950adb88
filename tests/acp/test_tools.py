"""Each tool, with the editor's help and without."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from helexa_acp.calls import TOOLS
from helexa_acp.errors import ToolError
from helexa_acp.history import Image, text_of
from helexa_acp.tools import programs
from tests.acp.bridge import BARE, CONFIG, WITH_FILES, WITH_TERMINALS, Workshop, has_ended, until
from tests.cases import each_case


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    for process in workshop.editor.terminals.values():
        if process.returncode is None:
            process.kill()


@pytest.fixture
def filled_shop(shop: Workshop) -> Workshop:
    (shop.cwd / "lines").write_text("1\n2\n3\n4\n")
    (shop.cwd / "binary").write_bytes(b"\0\1")
    (shop.cwd / "sub").mkdir()
    os.mkfifo(shop.cwd / "pipe")
    return shop


def test_the_schemas_are_plain() -> None:
    """Some servers read no references, and turn defaults into values."""
    (read,) = (tool.spec.parameters for tool in TOOLS if tool.spec.name == "read_file")
    line = {"type": "integer", "minimum": 1, "description": "The first line to read, from 1."}
    assert (read["properties"]["line"], read["required"]) == (line, ["path"])
    assert not any("$ref" in str(tool.spec.parameters) for tool in TOOLS)


@each_case(
    ("tool", "arguments", "why"),
    [
        ("read_file", {"path": "lines", "line": 5}, "past the end"),
        ("read_file", {"path": "lines", "line": 0}, ">= 1"),
        ("read_file", {"path": ["lines"]}, "Expected `str`, got `array`"),
        ("read_file", {}, "missing required field `path`"),
        ("read_file", {"path": "binary"}, "not a text file"),
        ("read_file", {"path": "pipe"}, "not a regular file"),
        ("read_file", {"path": "/dev/zero"}, "not a regular file"),
        ("read_file", {"path": "."}, "Is a directory"),
        ("read_file", {"path": "none"}, "No such file"),
        ("write_file", {"path": "sub", "content": "x"}, "not a regular file"),
        ("write_file", {"path": "lines/x", "content": "x"}, "exists|Not a directory"),
        ("edit_file", {"path": "lines", "old_text": "c", "new_text": "b"}, "not in the file"),
        ("edit_file", {"path": "lines", "old_text": "\n", "new_text": "b"}, "4 times"),
        ("edit_file", {"path": "lines", "old_text": "", "new_text": "b"}, "empty"),
        ("edit_file", {"path": "lines", "old_text": "b", "new_text": "b"}, "the same"),
        ("list_dir", {"path": "lines"}, "Not a directory"),
        ("search", {"pattern": "("}, "no regular expression"),
        ("search", {"pattern": "x", "path": "none"}, "is not there"),
        ("bash", {"command": " "}, "empty"),
        ("bash", {"command": "ls", "cwd": "none"}, "did not start"),
        ("update_plan", {"entries": "x"}, "Expected `array`"),
        ("update_plan", {"entries": [1]}, r"entries.0"),
        ("update_plan", {"entries": [{"content": "x", "status": "later"}]}, "'later'"),
    ],
)
async def test_wrong_calls(
    filled_shop: Workshop, tool: str, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ToolError, match=why):
        await filled_shop.run(tool, **arguments)


async def test_a_file_by_lines(shop: Workshop) -> None:
    (shop.cwd / "a").write_text("1\n2\n3\n4\n")
    assert await shop.text("read_file", path="a", line=None) == "1\n2\n3\n4\n"
    part = await shop.text("read_file", path="a", line=2, limit=2.0)
    assert part == "2\n3\n\n[lines 2 to 3 of 4; continue with line=4]"
    assert await shop.text("read_file", path="a", line="4") == "4\n"
    (shop.cwd / "a").write_text(("y" * 99 + "\n") * 2000)
    first = await shop.text("read_file", path="a")
    assert first.endswith("[lines 1 to 1000 of 2000; continue with line=1001]")
    (shop.cwd / "b").write_text("x" * 300_000)
    assert "the rest of this line was left out" in await shop.text("read_file", path="b")
    (shop.cwd / "a.PNG").write_bytes(b"png")
    outcome = await shop.run("read_file", path="a.PNG")
    assert outcome.parts[1] == Image("image/png", base64.b64encode(b"png").decode())


async def test_the_editors_buffer_comes_first_and_a_plan_is_shown(shop: Workshop) -> None:
    shop.capabilities = WITH_FILES
    (shop.cwd / "a").write_text("saved")
    (shop.cwd / "b").write_text("on the disk alone")
    shop.editor.unsaved[str(shop.cwd / "a")] = "not saved yet"
    assert await shop.text("read_file", path="a") == "not saved yet"
    assert await shop.text("read_file", path="b") == "on the disk alone"
    await shop.run("edit_file", path="a", old_text="not", new_text="almost")
    assert (shop.cwd / "a").read_text() == "almost saved yet"
    with pytest.raises(ToolError, match=r"No such file.*not open here"):
        await shop.run("read_file", path="missing")
    entries = ["think", {"content": "do", "status": "in_progress", "priority": "high"}]
    await shop.run("update_plan", entries=entries)
    (plan,) = shop.editor.updates_of("plan")
    assert [(one.content, one.status, one.priority) for one in plan.entries] == [
        ("think", "pending", "medium"),
        ("do", "in_progress", "high"),
    ]


async def test_a_file_is_written_whole(shop: Workshop) -> None:
    outcome = await shop.run("write_file", path="deep/er/a", content="one\r\ntwo\n")
    assert (shop.cwd / "deep/er/a").read_bytes() == b"one\r\ntwo\n"
    assert outcome.shown[0].old_text is None
    script = shop.cwd / "script"
    script.write_text("old")
    script.chmod(0o755)
    (shop.cwd / "link").symlink_to(script)
    outcome = await shop.run("write_file", path="link", content="new")
    assert (outcome.shown[0].old_text, outcome.shown[0].new_text) == ("old", "new")
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o755)
    assert (shop.cwd / "link").is_symlink()
    assert await shop.text("list_dir", path=".") == "deep/\nlink\nscript"
    await shop.run("edit_file", path="script", old_text="ew", new_text="o")
    assert script.read_text() == "no"
    (shop.cwd / "empty").mkdir()
    assert await shop.text("list_dir", path="empty") == "[empty]"


async def test_lines_are_found(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.cwd / "a.py").write_text("def f():\n    return Needle\n")
    (shop.cwd / "sub").mkdir()
    (shop.cwd / "sub" / "b.txt").write_text("a needle\n")
    (shop.cwd / "node_modules").mkdir()
    (shop.cwd / "node_modules" / "c.txt").write_text("needle")
    (shop.cwd / "binary").write_bytes(b"\0needle")
    for arguments, found in (
        ({"pattern": "needle"}, "sub/b.txt:1: a needle"),
        (
            {"pattern": "needle", "ignore_case": True},
            "a.py:2: return Needle\nsub/b.txt:1: a needle",
        ),
        ({"pattern": "e+dle", "glob": "*.py"}, "a.py:2: return Needle"),
        ({"pattern": "needle", "path": "sub/b.txt"}, "b.txt:1: a needle"),
        ({"pattern": "nothing"}, "[no line matches]"),
    ):
        assert await shop.text("search", **arguments) == found
    subprocess.run(["git", "init", "-q", "."], cwd=shop.cwd, check=True)
    (shop.cwd / ".gitignore").write_text("sub\n")
    assert await shop.text("search", pattern="needle") == "node_modules/c.txt:1: needle"

    monkeypatch.setattr(programs, "MAX_SEARCH_S", 0.5)
    (shop.cwd / "a").write_text("a" * 60 + "!\n")
    with pytest.raises(ToolError, match="took over"):  # the pattern never ends
        await shop.run("search", pattern="(a+)+$")


@pytest.mark.parametrize("capabilities", [BARE, WITH_TERMINALS], ids=["here", "terminal"])
async def test_a_command(shop: Workshop, capabilities: Any) -> None:
    shop.capabilities = capabilities
    (shop.cwd / "sub").mkdir()
    outcome = await shop.run("bash", command="echo out; echo err >&2; pwd", cwd="sub")
    assert text_of(outcome.parts) == f"out\nerr\n{shop.cwd}/sub"
    assert not outcome.is_error
    outcome = await shop.run("bash", command="echo no; exit 3")
    assert (text_of(outcome.parts), outcome.is_error) == ("no\n[exit code 3]", True)
    assert await shop.text("bash", command="true") == "[no output]"
    if capabilities is WITH_TERMINALS:
        assert len(shop.shown) == 3
        assert shop.editor.released == [f"terminal-{i}" for i in range(3)]
        assert outcome.shown[0].terminal_id == "terminal-1"
    shop.config = replace(CONFIG, bash_timeout_s=0.5)
    outcome = await shop.run("bash", command="exec sleep 600")
    assert outcome.is_error
    assert "[ended after 0.5 s]" in text_of(outcome.parts)


async def test_a_command_here_is_bounded(shop: Workshop) -> None:
    assert await shop.text("bash", command="cat; kill $$") == "[ended by signal SIGTERM]"
    child = await shop.text("bash", command="sleep 600 & echo $!")
    await until(lambda: has_ended(child.strip()))
    text = await shop.text("bash", command="yes 123456789 | head -c 1000000; echo end")
    assert len(text) < 140_000
    assert text.endswith("end\n[the beginning of the output was left out]")


async def test_a_terminal_is_released_when_cancelled(shop: Workshop) -> None:
    shop.capabilities = WITH_TERMINALS
    running = asyncio.create_task(shop.run("bash", command="exec sleep 600"))
    await until(lambda: shop.shown)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert shop.editor.killed == shop.editor.released == ["terminal-0"]
