"""The agent as editors start it: a process, spoken to over pipes with the SDK's client."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.acp.bridge import bridge_process, environment
from tests.acp.editor import WITH_TERMINALS
from tests.acp.fake_endpoint import FakeEndpoint, Hang, Reply

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


def started(tmp_path: Path, written: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """The process with ``written`` on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "helexa_acp"],
        env=environment(tmp_path, **settings),
        input=written,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    requests = 'nonsense\n{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    done = started(tmp_path, requests, HELEXA_ACP_LOG_FILE=str(log))
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert '"code":-32700' in first
    assert '"code":-32602' in second
    assert done.stderr == ""
    assert "a malformed message" in log.read_text()


def test_what_stands_in_the_way_is_on_standard_error(tmp_path: Path) -> None:
    done = started(tmp_path, HELEXA_ACP_LOG_FILE=str(tmp_path / "no" / "log"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "WARNING" in done.stderr and "cannot be written" in done.stderr
    done = started(tmp_path, HELEXA_LOG_LEVEL="loud")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("helexa-acp: HELEXA_LOG_LEVEL='loud' is not one of debug, info")
    done = started(tmp_path, "nonsense\n", HELEXA_LOG_LEVEL="DEBUG,helexa_acp=error")
    assert "helexa_acp.transport" not in done.stderr, "the log obeys the level"
    config = tmp_path / "config" / "helexa-acp" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("surprise = 1\n[[endpoints]]\nname = 'a'\nbase_url = 'http://a'\n")
    done = started(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"helexa-acp: {config}: Object contains unknown field `surprise`\n"
