"""Session files: whole, held by one, and read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helexa_acp.errors import StoreError
from helexa_acp.history import (
    INTERRUPTED,
    AssistantTurn,
    Image,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    UserTurn,
    answered,
)
from helexa_acp.modes import Mode
from helexa_acp.sessions import SessionStore
from tests.cases import each_case

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
        UserTurn((Text("Look."), Image("image/png", "AAAA"))),
        AssistantTurn(
            text="I look.",
            thoughts=(Thought("Hm.", "signed"), Thought("", {"type": "redacted"})),
            calls=(ToolCall("c1", "read_file", {"path": "a", "limit": 3}),),
        ),
        ToolResult(call_id="c1", name="read_file", parts=(Text("Look."),), is_error=True),
    ]
    store.save(session)
    assert json.loads((tmp_path / "hxa-1.json").read_text()) == WRITTEN
    with_images = [turn | {"images": PARTS[1:]} for turn in WRITTEN["history"]]
    (tmp_path / "hxa-1.json").write_text(json.dumps(WRITTEN | {"history": with_images}))
    assert store.load("hxa-1") == session


def test_a_session_is_held_by_one(tmp_path: Path, store: SessionStore) -> None:
    """The kernel releases the lock of a process that dies."""
    hold = store.hold("hxa-1")
    with pytest.raises(StoreError, match="open elsewhere"):
        SessionStore(tmp_path).hold("hxa-1")
    hold.close()
    store.hold("hxa-1").close()


@each_case(
    "session_id", ["../hxa-1", "hxa-../x", "hxa-", "", "x", "hxa-\0", "hxa-a/b", "hxa-" + "x" * 65]
)
def test_ids_lead_nowhere_else(store: SessionStore, session_id: str) -> None:
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


def test_a_failed_save_leaves_the_last_one(
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
    calls = (ToolCall("a", "bash", {}), ToolCall("b", "bash", {}))
    turn = AssistantTurn(calls=calls)
    done = ToolResult(call_id="a", name="bash", parts=(Text("done"),))
    missing = ToolResult(
        call_id="b", name="bash", parts=(Text(f"ERROR: {INTERRUPTED}"),), is_error=True
    )
    after = UserTurn((Text("Hello?"),))
    whole = answered([turn, done, after])
    assert whole == [turn, done, missing, after]
    assert answered(whole) == whole
    assert answered([turn, done]) == [turn, done, missing]
