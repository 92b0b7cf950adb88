"""What a mode allows, what a path really is, which calls ask the user, and which answers are
remembered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from helexa_acp.errors import ToolError
from helexa_acp.modes import Action, Mode, must_ask
from helexa_acp.tools.base import absolute, is_within, plans_dir
from tests.acp.bridge import Bridge
from tests.acp.editor import WITH_FILES
from tests.acp.fake_endpoint import FakeEndpoint, Reply

ASK, ALLOW, REFUSE = True, False, None
EXPECTED = {
    **{(Mode.DEFAULT, action): ASK for action in Action},
    **{(Mode.BYPASS, action): ALLOW for action in Action},
    (Mode.DEFAULT, Action.READ): ALLOW,
    (Mode.PLAN, Action.READ): ALLOW,
    (Mode.PLAN, Action.WRITE): REFUSE,
    (Mode.PLAN, Action.EXECUTE): REFUSE,
    (Mode.PLAN, Action.FETCH): ASK,
    (Mode.PLAN, Action.UNKNOWN): REFUSE,
    (Mode.PLAN, Action.UNKNOWN_READ): ASK,
}


def verdict(mode: Mode, action: Action, **named: bool) -> bool | None:
    try:
        return must_ask(mode, action, **named)
    except ToolError:
        return REFUSE


def test_every_mode_and_action() -> None:
    assert {(m, a): verdict(m, a) for m in Mode for a in Action} == EXPECTED
    assert verdict(Mode.PLAN, Action.WRITE, is_plan_file=True) is ALLOW
    assert verdict(Mode.PLAN, Action.EXECUTE, is_plan_file=True) is REFUSE


def test_paths_as_models_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    cwd = Path("/work")
    assert absolute("a/b", cwd) == Path("/work/a/b")
    assert absolute("/etc/hosts", cwd) == Path("/etc/hosts")
    assert absolute("../x", cwd) == Path("/x")
    assert absolute("~", cwd) == Path("/home/u")
    assert absolute("~/a", cwd) == Path("/home/u/a")
    assert absolute("$HOME/a", cwd) == Path("/home/u/a")
    assert absolute("${HOME}/a", cwd) == Path("/home/u/a")
    assert absolute("~other/a", cwd) == Path("/work/~other/a")
    for bad in ("", "a\0b"):
        with pytest.raises(ToolError):
            absolute(bad, cwd)


def test_the_folder_of_plans() -> None:
    """FNV-1a, in 32 bits."""
    assert plans_dir(Path("/data"), Path("foobar")) == Path("/data/plans/foobar-bf9cf968")


def test_links_and_dots_lead_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "plans", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    assert is_within(inside / "plan.md", inside)
    assert is_within(inside / "new" / "plan.md", inside)
    assert not is_within(inside / ".." / "outside" / "x", inside)
    assert not is_within(inside / "link" / "x", inside)
    assert not is_within(tmp_path / "plans-too" / "x", inside)
    with pytest.raises(ToolError):
        is_within(inside / "loop" / "x", inside)
    (tmp_path / "alias").symlink_to(inside)
    assert is_within(tmp_path / "alias" / "x", inside)
    assert is_within(inside / "x", tmp_path / "alias")


def calls(*made: tuple[str, dict[str, object]], call_id: str = "call") -> Reply:
    return Reply(calls=made, call_id=call_id)


async def test_once_is_once(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    edit = ("write_file", {"path": "a.txt", "content": "new"})
    endpoint.will(calls(edit), calls(edit, call_id="again"), Reply("Done."))
    bridge.editor.permissions.extend(["allow_once", "reject_once"])
    await bridge.open()
    await bridge.ask("Write.")
    (call, options), _ = bridge.editor.asked
    assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
    assert call.content[0].new_text == "new"
    assert call.locations[0].path == str(bridge.project / "a.txt")
    assert bridge.editor.statuses() == {"call_0": "completed", "again_0": "failed"}
    assert "did not allow" in json.dumps(endpoint.prompts[-1])


async def test_always_is_for_this_session(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    edits = [("write_file", {"path": f"{i}.txt", "content": "x"}) for i in range(3)]
    endpoint.will(calls(*edits), Reply("Done."))
    bridge.editor.permissions.append("allow_always")
    await bridge.open()
    await bridge.ask("Write.")
    assert len(bridge.editor.asked) == 1
    assert sorted(path.name for path in bridge.project.iterdir()) == ["0.txt", "1.txt", "2.txt"]
    await bridge.new()
    endpoint.answers.clear()
    endpoint.will(calls(edits[0]), Reply("Done."))
    bridge.editor.permissions.append("reject_once")
    await bridge.ask("Again, in another session.")
    assert len(bridge.editor.asked) == 2


async def test_always_in_the_project_is_not_elsewhere(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    outside = bridge.project.parent / "outside.txt"
    (bridge.project / "link.txt").symlink_to(outside)
    endpoint.will(
        calls(
            ("write_file", {"path": "a.txt", "content": "x"}),
            ("write_file", {"path": "../outside.txt", "content": "x"}),
            ("write_file", {"path": "link.txt", "content": "x"}),
        ),
        Reply("Done."),
    )
    bridge.editor.permissions.extend(["allow_always", "reject_once", "reject_once"])
    await bridge.open()
    await bridge.ask("Write.")
    assert len(bridge.editor.asked) == 3
    assert not outside.exists()


async def test_always_for_a_command_is_that_command(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    touch = ("bash", {"command": "echo x >> log"})
    endpoint.will(calls(touch, touch, ("bash", {"command": "rm log"})), Reply("Done."))
    bridge.editor.permissions.extend(["allow_always", "reject_once"])
    await bridge.open()
    await bridge.ask("Run.")
    assert len(bridge.editor.asked) == 2
    assert (bridge.project / "log").read_text() == "x\nx\n"


async def test_a_dismissed_question_is_a_no(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(calls(("bash", {"command": "touch a"})), Reply("Done."))
    bridge.editor.permissions.append(None)
    await bridge.open()
    assert (await bridge.ask("Run.")).stop_reason == "end_turn"
    assert not (bridge.project / "a").exists()


async def test_cancelled_while_it_asks(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(
        calls(("bash", {"command": "touch a"}), ("list_dir", {"path": "."})), Reply("Ok.")
    )
    await bridge.open()
    asking = asyncio.create_task(bridge.ask("Run."))
    await bridge.editor.is_asked.wait()
    await bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    assert bridge.editor.statuses() == {"call_0": "failed"}
    assert (await bridge.ask("Go on.")).stop_reason == "end_turn"
    results = [one for one in endpoint.prompts[-1]["messages"] if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in results] == ["call_0", "call_1"]
    assert all("cancelled" in one["content"] for one in results)
    assert not (bridge.project / "a").exists()


async def test_bypass_asks_nothing(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(calls(("bash", {"command": "echo hello > a"})), Reply("Done."))
    await bridge.open()
    await bridge.set_mode("bypassPermissions")
    await bridge.ask("Run.")
    assert not bridge.editor.asked
    assert (bridge.project / "a").read_text() == "hello\n"


async def test_plan_mode_writes_plans_alone(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    await bridge.open(WITH_FILES)
    await bridge.set_mode("plan")
    endpoint.will(Reply("Hm."))
    await bridge.ask("What may you do?")
    system = endpoint.prompts[0]["messages"][0]["content"]
    plans = system.partition("plans, in ")[2].partition(". When")[0]
    assert plans.startswith(str(bridge.data_dir / "plans" / "project-"))
    assert "bash" not in [tool["function"]["name"] for tool in endpoint.prompts[0]["tools"]]
    (bridge.data_dir / "plans").mkdir(exist_ok=True)
    plans_dir = bridge.data_dir / "plans" / plans.rpartition("/")[2]
    plans_dir.mkdir()
    (plans_dir / "link").symlink_to(bridge.project)
    endpoint.answers.clear()
    endpoint.will(
        calls(
            ("write_file", {"path": f"{plans}/plan.md", "content": "1. think"}),
            ("write_file", {"path": f"{plans}/../../../project/a", "content": "x"}),
            ("write_file", {"path": f"{plans}/link/a", "content": "x"}),
            ("write_file", {"path": "a", "content": "x"}),
            ("edit_file", {"path": f"{plans}/plan.md", "old_text": "think", "new_text": "do"}),
            ("bash", {"command": "touch a"}),
        ),
        Reply("Planned."),
    )
    assert "/mode" not in bridge.editor.texts()
    await bridge.ask("Plan it.")
    assert not bridge.editor.asked
    menu = bridge.editor.texts().partition("How to continue:")[2]
    assert [line[:2] for line in menu.splitlines() if line] == ["1.", "2.", "3."]
    assert (plans_dir / "plan.md").read_text() == "1. do"
    assert list(bridge.project.iterdir()) == []
    done = ["completed", "failed", "failed", "failed", "completed", "failed"]
    assert list(bridge.editor.statuses().values()) == done


async def test_the_mode_at_the_answer_counts(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    """Who goes to plan mode while a question is open means it."""
    endpoint.will(calls(("bash", {"command": "touch a"})), Reply("Done."))
    await bridge.open()
    asking = asyncio.create_task(bridge.ask("Run."))
    await bridge.editor.is_asked.wait()
    await bridge.set_mode("plan")
    bridge.editor.permissions.append("allow_once")
    assert (await asking).stop_reason == "end_turn"
    assert not (bridge.project / "a").exists()
    assert bridge.editor.statuses() == {"call_0": "failed"}
