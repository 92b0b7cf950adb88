"""What a mode allows, and what a path really is."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa_acp.errors import ToolError
from helexa_acp.modes import Action, Mode, Verdict, judge
from helexa_acp.tools.base import absolute, fnv1a32, is_within, plans_dir

EXPECTED = {
    (Mode.DEFAULT, Action.READ): Verdict.ALLOW,
    (Mode.DEFAULT, Action.WRITE): Verdict.ASK,
    (Mode.DEFAULT, Action.EXECUTE): Verdict.ASK,
    (Mode.DEFAULT, Action.FETCH): Verdict.ASK,
    (Mode.DEFAULT, Action.UNKNOWN): Verdict.ASK,
    (Mode.DEFAULT, Action.UNKNOWN_READ): Verdict.ASK,
    (Mode.PLAN, Action.READ): Verdict.ALLOW,
    (Mode.PLAN, Action.WRITE): Verdict.REFUSE,
    (Mode.PLAN, Action.EXECUTE): Verdict.REFUSE,
    (Mode.PLAN, Action.FETCH): Verdict.ASK,
    (Mode.PLAN, Action.UNKNOWN): Verdict.REFUSE,
    (Mode.PLAN, Action.UNKNOWN_READ): Verdict.ASK,
    **{(Mode.BYPASS, action): Verdict.ALLOW for action in Action},
}


def test_every_mode_and_action() -> None:
    found = {(m, a): judge(m, a).verdict for m in Mode for a in Action}
    assert found == EXPECTED
    assert judge(Mode.PLAN, Action.WRITE, is_plan_file=True).verdict is Verdict.ALLOW
    assert judge(Mode.PLAN, Action.EXECUTE, is_plan_file=True).verdict is Verdict.REFUSE


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
    assert fnv1a32(b"") == 0x811C9DC5
    assert fnv1a32(b"a") == 0xE40C292C
    assert fnv1a32(b"foobar") == 0xBF9CF968
    found = plans_dir(Path("/data"), Path("/work/shop"))
    assert found == Path(f"/data/plans/shop-{fnv1a32(b'/work/shop'):08x}")


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
