"""Session files: whole, held by one, and read with suspicion; and the parts left out of a
conversation that does not fit, and in which order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helexa_acp import history
from helexa_acp.errors import StoreError
from helexa_acp.sessions import SessionStore
from helexa_acp.tools import Mode

PARTS = [
    {"type": "text", "text": "Look."},
    {"type": "image", "mime_type": "image/png", "data": "AAAA"},
]
THOUGHTS = [{"text": "Hm.", "sealed": "signed"}, {"text": "", "sealed": {"type": "redacted"}}]
CALL = {"id": "c1", "name": "read_file", "arguments": {"path": "a", "limit": 3}}
RESULT = {"call_id": "c1", "name": "read_file", "parts": PARTS[:1], "is_error": True}
WRITTEN: dict[str, Any] = {
    "session_id": "hxa-1",
    "cwd": "/work",
    "model_id": "home:m",
    "mode_id": "plan",
    "history": [
        {"role": "user", "parts": PARTS},
        {"role": "assistant", "text": "I look.", "thoughts": THOUGHTS, "calls": [CALL]},
        {"role": "tool", **RESULT},
    ],
    "created_at": "2026-01-01T00:00:00.000Z",
    "updated_at": "2026-01-02T00:00:00.000Z",
    "elided_before": 2,
    "usage": {
        "input_tokens": 1,
        "output_tokens": 2,
        "cached_tokens": 3,
        "thought_tokens": 4,
        "last_total_tokens": 5,
    },
}


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    (tmp_path / "hxa-1.json").write_text(json.dumps(WRITTEN))
    return SessionStore(tmp_path)


def test_files_of_the_first_version_are_read(tmp_path: Path, store: SessionStore) -> None:
    session = store.load("hxa-1")
    assert session.mode is Mode.PLAN
    assert session.title == "Look."
    assert session.history == [
        history.UserTurn((history.Text("Look."), history.Image("image/png", "AAAA"))),
        history.AssistantTurn(
            text="I look.",
            thoughts=(history.Thought("Hm.", "signed"), history.Thought("", {"type": "redacted"})),
            calls=(history.ToolCall("c1", "read_file", {"path": "a", "limit": 3}),),
        ),
        history.ToolResult(
            call_id="c1", name="read_file", parts=(history.Text("Look."),), is_error=True
        ),
    ]
    store.save(session)
    assert json.loads((tmp_path / "hxa-1.json").read_text()) == WRITTEN
    with_images = [turn | {"images": PARTS[1:]} for turn in WRITTEN["history"]]
    (tmp_path / "hxa-1.json").write_text(json.dumps(WRITTEN | {"history": with_images}))
    assert store.load("hxa-1") == session


def test_a_session_is_held_by_one_and_ids_stay_inside(tmp_path: Path, store: SessionStore) -> None:
    """The kernel releases the lock of a process that dies."""
    hold = store.hold("hxa-1")
    with pytest.raises(StoreError, match="open elsewhere"):
        SessionStore(tmp_path).hold("hxa-1")
    hold.close()
    store.hold("hxa-1").close()
    odd = ("../hxa-1", "hxa-../x", "hxa-", "", "x", "hxa-\0", "hxa-a/b", "hxa-" + "x" * 65)
    for session_id in odd:
        for method in (store.load, store.hold):
            with pytest.raises(StoreError, match="not a session's id"):
                method(session_id)


def test_broken_files_are_reported_and_passed_over(tmp_path: Path, store: SessionStore) -> None:
    broken = {
        "empty": "",
        "cut": json.dumps(WRITTEN)[:-50],
        "list": "[]",
        "other": json.dumps(WRITTEN),
        "turn": json.dumps(WRITTEN | {"session_id": "hxa-turn", "history": [{"role": "x"}]}),
        "count": json.dumps(WRITTEN | {"session_id": "hxa-count", "usage": {"input_tokens": "a"}}),
        "deep": "[" * 100_000,
    }
    for name, text in broken.items():
        (tmp_path / f"hxa-{name}.json").write_text(text)
        with pytest.raises(StoreError):
            store.load(f"hxa-{name}")
    later = WRITTEN | {"session_id": "hxa-2", "updated_at": "2026-01-03T00:00:00.000Z"}
    (tmp_path / "hxa-2.json").write_text(json.dumps(later))
    assert [one.session_id for one in store.all()] == ["hxa-2", "hxa-1"]


def test_a_save_that_fails(
    tmp_path: Path, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    session = store.load("hxa-1")
    session.history = []
    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(StoreError, match="No space"):
        store.save(session)
    assert json.loads((tmp_path / "hxa-1.json").read_text()) == WRITTEN
    assert [path.name for path in tmp_path.iterdir()] == ["hxa-1.json"]


def test_calls_without_results_get_one() -> None:
    turn = history.AssistantTurn(
        calls=(history.ToolCall("a", "bash", {}), history.ToolCall("b", "bash", {}))
    )
    done = history.ToolResult(call_id="a", name="bash", parts=(history.Text("done"),))
    why = (history.Text(f"ERROR: {history.INTERRUPTED}"),)
    missing = history.ToolResult(call_id="b", name="bash", parts=why, is_error=True)
    after = history.UserTurn((history.Text("Hello?"),))
    whole = history.answered([turn, done, after])
    assert whole == [turn, done, missing, after]
    assert history.answered(whole) == whole
    assert history.answered([turn, done]) == [turn, done, missing]


LONG = "x" * 3500


def user_turn(text: str) -> history.UserTurn:
    return history.UserTurn((history.Text(text),))


def called(name: str, text: str = "") -> history.AssistantTurn:
    return history.AssistantTurn(
        text=text, calls=(history.ToolCall(name, "read_file", {"path": name}),)
    )


def result(name: str, text: str = LONG) -> history.ToolResult:
    return history.ToolResult(call_id=name, name="read_file", parts=(history.Text(text),))


def conversation(num_rounds: int) -> list[history.Turn]:
    turns: list[history.Turn] = [user_turn(LONG)]
    for i in range(num_rounds):
        turns += [called(f"c{i}", LONG), result(f"c{i}")]
    return turns


def changed(kept: history.Projection, turns: list[history.Turn]) -> list[int]:
    assert len(kept.turns) == len(turns)
    return [index for index, turn in enumerate(turns) if kept.turns[index] != turn]


def test_the_rule_for_tokens_and_the_budget() -> None:
    assert (history.text_tokens(""), history.text_tokens("x" * 35)) == (8, 18)
    assert history.turn_tokens(history.UserTurn((history.Image("image/png", "AAAA"),))) == 8 + 512
    assert history.budget_tokens(8192, None) == 8192 - 2048 - 512
    assert history.budget_tokens(8192, 1000) == 8192 - 1000 - 512
    assert history.budget_tokens(1000, 4000) == 250, "answers do not take all of it"
    assert history.budget_tokens(None, 1000) == history.UNBOUNDED
    for budget in (100, 3000):
        assert history.budget_tokens(history.window_for(budget, 1000), 1000) == budget


def test_what_goes_first_where_it_does_not_fit() -> None:
    """The oldest results, then the assistant's texts, then earlier prompts with all that followed
    them. Short results and the present prompt stay, and calls keep their results."""
    turns = conversation(4)
    whole = history.project(turns, budget=history.UNBOUNDED, fixed_tokens=10).estimated_tokens
    assert whole == 10 + sum(map(history.turn_tokens, turns))
    assert changed(history.project(turns, budget=whole, fixed_tokens=10), turns) == []
    kept = history.project(turns, budget=whole - 1500, fixed_tokens=10)
    assert changed(kept, turns) == [2, 4]
    assert "3500 characters of this result" in str(kept.turns[2])
    assert kept.estimated_tokens <= whole - 1500
    # By the endpoint's count, and by /compact for any budget.
    assert changed(history.project(turns, budget=whole, fixed_tokens=10, scale=1.01), turns) == [2]
    kept = history.project(turns, budget=history.UNBOUNDED, fixed_tokens=0, elided_before=3)
    assert changed(kept, turns) == [1, 2]

    latest = [user_turn(LONG), called("d"), result("d")]
    turns = [*turns, called("c"), result("c", "y" * 255), *latest]
    least = history.project(turns[:-3], budget=0, fixed_tokens=0).estimated_tokens
    kept = history.project(turns, budget=least + 2200, fixed_tokens=0)
    assert set(changed(kept, turns)) <= set(range(1, 9))
    elided = kept.turns[1]
    assert isinstance(elided, history.AssistantTurn)
    assert elided.calls == turns[1].calls  # type: ignore[union-attr]
    assert "3500 characters were left out" in elided.text

    turns = [*conversation(1), user_turn("b"), called("c"), result("c", "short"), *latest]
    kept = history.project(turns, budget=2300, fixed_tokens=0)
    mark = history.Text("[3 earlier turns were left out]")
    assert kept.turns == (history.UserTurn((mark, history.Text("b"))), *turns[4:])
    kept = history.project(turns, budget=kept.estimated_tokens - 1, fixed_tokens=0)
    mark = history.Text("[6 earlier turns were left out]")
    assert kept.turns == (history.UserTurn((mark, history.Text(LONG))), *latest[1:])
    assert history.can_shrink(kept), "the latest results go last"
    kept = history.project(latest, budget=0, fixed_tokens=0)
    assert changed(kept, latest) == [2]
    assert not history.can_shrink(kept)


@given(
    st.lists(st.sampled_from(["user", "call", "result"]), max_size=30),
    st.integers(0, 20_000),
    st.floats(0.2, 3.0),
)
def test_the_latest_prompt_and_its_rest_stay(kinds: list[str], budget: int, scale: float) -> None:
    made = {"user": user_turn(LONG), "call": called("c", LONG), "result": result("c")}
    turns: list[history.Turn] = [made[kind] for kind in kinds]
    kept = history.project(turns, budget=budget, fixed_tokens=100, scale=scale)
    num_kept = len(kept.turns)
    assert [type(turn) for turn in kept.turns] == [type(turn) for turn in turns][-num_kept:]
    prompts = [index for index, kind in enumerate(kinds) if kind == "user"]
    if num_kept < len(turns):
        assert isinstance(kept.turns[0], history.UserTurn)
        assert len(turns) - num_kept <= prompts[-1]
    assert kept.estimated_tokens == 100 + sum(map(history.turn_tokens, kept.turns))
    assert kept.estimated_tokens * scale <= budget or not history.can_shrink(kept)
