"""The agent as editors start it: a process, spoken to over pipes with the SDK's client."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from acp import RequestError, image_block
from acp.schema import McpServerStdio

from helexa_acp.__main__ import read_levels
from helexa_acp.errors import ConfigError
from inference.settings.kinds import LogLevel, LogLevels
from tests.acp.bridge import bridge_process, environment
from tests.acp.editor import WITH_TERMINALS
from tests.acp.fake_dialects import Reply
from tests.acp.fake_endpoint import BreakOff, FakeEndpoint, Hang, Refuse
from tests.cases import each_case

pytestmark = pytest.mark.slow

BROKEN = "def total(prices):\n    return sum(prices) + 1\n"
TESTS = """
import unittest
from shop import total

class Total(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""


async def test_a_whole_task(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    """Read, edit wrongly, run the tests, see them fail, mend it, see them pass."""
    run_tests = ("bash", {"command": f"{sys.executable} -m unittest -q test_shop"})

    def edit(old: str, new: str) -> tuple[str, dict[str, str]]:
        return ("edit_file", {"path": "shop.py", "old_text": old, "new_text": new})

    endpoint.will(
        Reply("I look.", calls=(("read_file", {"path": "shop.py"}), ("list_dir", {"path": "."}))),
        Reply(calls=(edit("+ 1", "+ 2"), run_tests), call_id="wrong"),
        Reply("Still wrong.", calls=(edit(" + 2", ""), run_tests), call_id="right"),
        Reply("The total is right now."),
    )
    settings = {"HELEXA_ACP_BASE_URL": endpoint.url, "HELEXA_ACP_MODEL": "fake-model"}
    async with bridge_process(tmp_path, **settings) as (bridge, process):
        (bridge.project / "shop.py").write_text(BROKEN)
        (bridge.project / "test_shop.py").write_text(textwrap.dedent(TESTS))
        bridge.editor.permissions.extend(["allow_always"] * 2)
        await bridge.open(WITH_TERMINALS)
        answer = await bridge.ask("The total is wrong. Mend it, and run the tests.")
        assert answer.stop_reason == "end_turn"
        assert (bridge.project / "shop.py").read_text() == BROKEN.replace(" + 1", "")
        assert len(bridge.editor.asked) == 2, "the edits, and the command"
        assert bridge.editor.statuses() == {
            "call_0": "completed",
            "call_1": "completed",
            "wrong_0": "completed",
            "wrong_1": "failed",
            "right_0": "completed",
            "right_1": "completed",
        }
        failed, passed = (
            [one["content"] for one in body["messages"] if one["role"] == "tool"][-1]
            for body in endpoint.prompts[-2:]
        )
        assert "AssertionError: 5 != 3" in failed
        assert "OK" in passed
        assert bridge.editor.texts().endswith("The total is right now.")
        assert process.returncode is None
    assert process.returncode == 0


async def test_after_a_crash_the_rounds_are_there(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    hang = Hang("I think")
    endpoint.will(Reply("I look.", calls=(("list_dir", {"path": "."}),)), hang)
    settings = {"HELEXA_ACP_BASE_URL": endpoint.url, "HELEXA_ACP_MODEL": "fake-model"}
    async with bridge_process(tmp_path, **settings) as (bridge, process):
        await bridge.open()
        asking = asyncio.create_task(bridge.ask("What is here?"))
        await hang.begun.wait()
        process.kill()
        await asyncio.wait([asking])
        session_id = bridge.session_id
    endpoint.answers.clear()
    endpoint.will(Reply("Nothing."))
    async with bridge_process(tmp_path, **settings) as (bridge, process):
        await bridge.connection.initialize(protocol_version=1)
        await bridge.connection.load_session(
            cwd=str(bridge.project), session_id=session_id, mcp_servers=[]
        )
        assert bridge.editor.texts() == "I look."
        assert bridge.editor.statuses() == {"call_0": "completed"}
        bridge.session_id = session_id
        await bridge.ask("Go on.")
        assert await bridge.new() != session_id
        await bridge.ask("Something else.")
        files = sorted(path.name for path in (bridge.data_dir / "sessions").glob("*.json"))
        assert files == sorted(f"{one}.json" for one in (session_id, bridge.session_id))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("wire_api", ["openai-responses", "anthropic-messages"])
async def test_the_other_apis(tmp_path: Path, endpoint: FakeEndpoint, wire_api: str) -> None:
    """Their SDKs are imported in parts, in a process alone: calls, errors and images are there."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'[[endpoints]]\nname = "fake"\nbase_url = "{endpoint.url}"\nwire_api = "{wire_api}"\n'
        'default_model = "fake-model"\n'
    )
    endpoint.will(
        Refuse(401, "That key is none.", "invalid_api_key"),
        Reply("I look.", calls=(("list_dir", {"path": "."}),)),
        Reply("Nothing is here."),
        BreakOff("It is a"),
    )
    async with bridge_process(tmp_path, HELEXA_ACP_CONFIG_PATH=str(path)) as (bridge, _):
        server = McpServerStdio(name="none", command="/nowhere/server", args=[], env=[])
        await bridge.open(mcp_servers=[server])
        with pytest.raises(RequestError, match="That key is none"):
            await bridge.ask("Hello!")
        image = image_block("iVBORw0KGgo=", "image/png")
        assert (await bridge.ask("What is here?", image)).stop_reason == "end_turn"
        assert "MCP server none cannot be used" in bridge.editor.texts()
        assert bridge.editor.texts().endswith("I look.Nothing is here.")
        assert list(bridge.editor.statuses().values()) == ["completed"]
        with pytest.raises(RequestError, match="broke off"):
            await bridge.ask("And then?")


def test_a_broken_configuration_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "config" / "helexa-acp" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("surprise = 1\n[[endpoints]]\nname = 'a'\nbase_url = 'http://a'\n")
    done = subprocess.run(
        [sys.executable, "-m", "helexa_acp"],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"helexa-acp: {config}: Object contains unknown field `surprise`\n"


def test_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    requests = b'nonsense\n{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    reader, writer = os.pipe()
    os.write(writer, requests)
    os.close(writer)
    done = subprocess.run(
        [sys.executable, "-m", "helexa_acp"],
        env=environment(tmp_path, HELEXA_ACP_LOG_FILE=str(log)),
        stdin=reader,
        capture_output=True,
        text=True,
        timeout=120,
    )
    os.close(reader)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert '"code":-32700' in first
    assert '"code":-32602' in second
    assert done.stderr == ""
    assert "a malformed message" in log.read_text()


@pytest.mark.parametrize(
    ("word", "logged"),
    [
        ("", ["WARNING"]),
        ("error", []),
        ("error,helexa_acp.transport=info", ["WARNING"]),
        ("DEBUG,helexa_acp=error", []),
    ],
)
def test_the_log_obeys_the_level(tmp_path: Path, word: str, logged: list[str]) -> None:
    done = _start(tmp_path, "nonsense\n", HELEXA_LOG_LEVEL=word)
    lines = [line for line in done.stderr.splitlines() if "helexa_acp.transport" in line]
    assert [line.split()[2] for line in lines] == logged


def test_a_level_that_is_none_ends_the_start(tmp_path: Path) -> None:
    done = _start(tmp_path, "", HELEXA_LOG_LEVEL="loud")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("helexa-acp: HELEXA_LOG_LEVEL='loud' is not one of debug, info")


@each_case(
    "word",
    [
        *(" ", "info", "info,debug", "info,", "a.b=info", "debug, httpx = info", "=info", "1=info"),
        *("a=loud", "a=info,a=error", "a=info,a=INFO"),
    ],
)
def test_the_levels_are_read_as_the_server_reads_them(word: str) -> None:
    names = logging.getLevelNamesMapping()
    try:
        wanted = LogLevels().parse(word) if word.strip() else LogLevel()
    except ValueError:
        with pytest.raises(ConfigError):
            read_levels(word)
        return
    levels = {name: names[level.upper()] for name, level in wanted.by_logger}
    if wanted.default is not None:
        levels[""] = names[wanted.default.upper()]
    assert read_levels(word) == levels


def _start(tmp_path: Path, written: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "helexa_acp"],
        env=environment(tmp_path, **settings),
        input=written,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_log_that_cannot_be_written_goes_to_standard_error(tmp_path: Path) -> None:
    done = _start(tmp_path, HELEXA_ACP_LOG_FILE=str(tmp_path / "no" / "log"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "WARNING" in done.stderr
    assert "cannot be written" in done.stderr
