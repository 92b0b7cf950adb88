"""What a mode allows, what a path really is, which calls ask the user, and which answers are
remembered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from helexa_acp.errors import ToolError
from helexa_acp.tools import Action, Mode, absolute, is_within, must_ask, plans_dir
from tests.acp.bridge import WITH_FILES, Bridge
from tests.acp.fake_endpoint import FakeEndpoint, Reply
from tests.cases import each_case

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
    for written, meant in (
        *(("a/b", "/work/a/b"), ("/etc/hosts", "/etc/hosts"), ("../x", "/x")),
        *(("~", "/home/u"), ("~/a", "/home/u/a"), ("~other/a", "/work/~other/a")),
        *(("$HOME/a", "/home/u/a"), ("${HOME}/a", "/home/u/a")),
    ):
        assert absolute(written, Path("/work")) == Path(meant)
    for written in ("", "a\0b"):
        with pytest.raises(ToolError):
            absolute(written, Path("/work"))


def test_links_and_dots_lead_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "plans", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    (tmp_path / "alias").symlink_to(inside)
    for path in (inside / "plan.md", inside / "new" / "plan.md", tmp_path / "alias" / "x"):
        assert is_within(path, inside)
    for path in (inside / ".." / "outside" / "x", inside / "link" / "x", tmp_path / "plans-too"):
        assert not is_within(path, inside)
    assert is_within(inside / "x", tmp_path / "alias")
    with pytest.raises(ToolError):
        is_within(inside / "loop" / "x", inside)
    fnv1a32 = "bf9cf968"
    assert plans_dir(Path("/data"), Path("foobar")) == Path(f"/data/plans/foobar-{fnv1a32}")


def write(path: str) -> tuple[str, dict[str, object]]:
    return "write_file", {"path": path, "content": "new"}


def run(command: str) -> tuple[str, dict[str, object]]:
    return "bash", {"command": command}


@each_case(
    ("calls", "answers", "done"),
    [
        ([write("a"), write("b")], ["allow_once", "reject_once"], "yn"),
        ([write("c"), write("d/e")], ["allow_always"], "yy"),
        (
            [write("f"), write("../out"), write("link")],
            ["allow_always", *["reject_once"] * 2],
            "ynn",
        ),
        ([write("../out"), write("../out")], ["allow_always"], "yy"),
        ([run("true"), run("true"), run("false")], ["allow_always", "reject_once"], "yyn"),
        ([run("true")], [None], "n"),
    ],
)
async def test_which_answers_are_remembered(
    bridge: Bridge, endpoint: FakeEndpoint, calls: list[object], answers: list[str], done: str
) -> None:
    """Always is for this session: edits in the project, one file elsewhere, one command."""
    link = bridge.project / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(bridge.project.parent / "linked")
    bridge.editor.updates.clear()
    bridge.editor.permissions.extend(answers)
    endpoint.will(Reply(calls=tuple(calls)), Reply("Done."))
    await bridge.open()
    assert (await bridge.ask("Do it.")).stop_reason == "end_turn"
    statuses = ["completed" if one == "y" else "failed" for one in done]
    assert list(bridge.editor.statuses().values()) == statuses
    assert not bridge.editor.permissions
    assert ("did not allow" in json.dumps(endpoint.prompts[-1])) == ("n" in done)
    call, options = bridge.editor.asked[0]
    assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
    assert call.content[0].new_text == "new"
    assert call.locations[0].path == str(bridge.project / "a")


async def test_cancelled_or_in_plan_mode_while_it_asks(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    """Who goes to plan mode while a question is open means it; then nothing is asked at all."""
    endpoint.will(Reply(calls=(run("touch a"), ("list_dir", {"path": "."}))), Reply("Ok."))
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
    bridge.editor.is_asked.clear()
    endpoint.will(Reply(calls=(run("touch a"),), call_id="planned"), Reply("Done."))
    asking = asyncio.create_task(bridge.ask("Run."))
    await bridge.editor.is_asked.wait()
    await bridge.set_mode("plan")
    bridge.editor.permissions.extend(["allow_once"] * 2)  # of the one that was cancelled too
    assert (await asking).stop_reason == "end_turn"
    assert bridge.editor.statuses()["planned_0"] == "failed"
    assert not (bridge.project / "a").exists()
    endpoint.will(Reply(calls=(run("touch a"),)), Reply("Done."))
    await bridge.set_mode("bypassPermissions")
    await bridge.ask("Run.")
    assert len(bridge.editor.asked) == 2
    assert (bridge.project / "a").exists()


async def test_plan_mode_writes_plans_alone(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    await bridge.open(WITH_FILES)
    await bridge.set_mode("plan")
    endpoint.will(Reply("Hm."))
    await bridge.ask("What may you do?")
    plans = plans_dir(bridge.data_dir, bridge.project)
    assert f"plans, in {plans}." in endpoint.prompts[0]["messages"][0]["content"]
    assert "bash" not in [tool["function"]["name"] for tool in endpoint.prompts[0]["tools"]]
    assert "/mode" not in bridge.editor.texts()
    plans.mkdir(parents=True)
    (plans / "link").symlink_to(bridge.project)
    edit = {"path": f"{plans}/plan.md", "old_text": "new", "new_text": "1. do"}
    endpoint.will(
        Reply(
            calls=(
                write(f"{plans}/plan.md"),
                write(f"{plans}/../../../project/a"),
                write(f"{plans}/link/a"),
                write("a"),
                ("edit_file", edit),
                run("touch a"),
            )
        ),
        Reply("Planned."),
    )
    await bridge.ask("Plan it.")
    assert not bridge.editor.asked
    menu = bridge.editor.texts().partition("How to continue:")[2]
    assert [line[:2] for line in menu.splitlines() if line] == ["1.", "2.", "3."]
    assert (plans / "plan.md").read_text() == "1. do"
    assert list(bridge.project.iterdir()) == []
    done = ["completed", "failed", "failed", "failed", "completed", "failed"]
    assert list(bridge.editor.statuses().values()) == done
