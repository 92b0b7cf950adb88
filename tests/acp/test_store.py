"""Session files: whole, held by one, and read with suspicion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from helexa_acp.errors import StoreError
from helexa_acp.history import (
    INTERRUPTED,
    AssistantTurn,
    Image,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    UserTurn,
    answered,
)
from helexa_acp.modes import Mode
from helexa_acp.store import Record, SessionStore, new_session_id
from tests.acp.bridge import PACKAGE_DIR
from tests.cases import each_case

HISTORY: tuple[Turn, ...] = (
    UserTurn((Text("Look."), Image("image/png", "AAAA"))),
    AssistantTurn(
        text="I look.",
        thoughts=(Thought("Hm.", "signed"), Thought("", {"type": "redacted_thinking"})),
        calls=(ToolCall("c1", "read_file", {"path": "a", "limit": 3}),),
    ),
    ToolResult(call_id="c1", name="read_file", parts=(Text("ERROR: none"),), is_error=True),
)


def stored(session_id: str, **changed: object) -> Record:
    session = Record(
        session_id=session_id,
        cwd="/work",
        model_id="home:m",
        mode=Mode.PLAN,
        history=list(HISTORY),
        created_at="2026-01-01T00:00:00.000Z",
        updated_at="2026-01-02T00:00:00.000Z",
        elided_before=2,
        usage=Usage(1, 2, 3, 4, 5),
    )
    return replace(session, **changed)  # type: ignore[arg-type]


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = stored(new_session_id())
    store.save(session)
    assert store.load(session.session_id) == session
    assert store.all() == [session]


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    written = {
        "session_id": "hxa-1",
        "cwd": "/work",
        "model_id": "home:m",
        "mode_id": "plan",
        "history": [
            {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Look."},
                    {"type": "image", "mime_type": "image/png", "data": "AAAA"},
                ],
            },
            {
                "role": "assistant",
                "text": "I look.",
                "thoughts": [
                    {"text": "Hm.", "sealed": "signed"},
                    {"text": "", "sealed": {"type": "redacted_thinking"}},
                ],
                "calls": [
                    {"id": "c1", "name": "read_file", "arguments": {"path": "a", "limit": 3}}
                ],
            },
            {
                "role": "tool",
                "call_id": "c1",
                "name": "read_file",
                "parts": [{"type": "text", "text": "ERROR: none"}],
                "is_error": True,
            },
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
    (tmp_path / "hxa-1.json").write_text(json.dumps(written))
    store = SessionStore(tmp_path)
    assert store.load("hxa-1") == stored("hxa-1")
    store.save(stored("hxa-1"))
    assert json.loads((tmp_path / "hxa-1.json").read_text()) == written


def test_ids_do_not_collide() -> None:
    assert len({new_session_id() for _ in range(1000)}) == 1000


def test_a_session_is_held_by_one(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    hold = store.hold("hxa-1")
    with pytest.raises(StoreError, match="open elsewhere"):
        SessionStore(tmp_path).hold("hxa-1")
    hold.close()
    store.hold("hxa-1").close()


HOLDS = """
import sys, time
from pathlib import Path
from helexa_acp.store import SessionStore
hold = SessionStore(Path(sys.argv[1])).hold("hxa-1")
print("held", flush=True)
time.sleep(600)
"""


def test_a_process_that_dies_releases_its_file(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(PACKAGE_DIR)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        store = SessionStore(tmp_path)
        with pytest.raises(StoreError, match="open elsewhere"):
            store.hold("hxa-1")
        other.kill()
        other.wait()
        store.hold("hxa-1").close()


@each_case("session_id", ["../hxa-1", "hxa-../x", "hxa-", "", "x", "hxa-\0", "hxa-a/b"])
def test_ids_lead_nowhere_else(tmp_path: Path, session_id: str) -> None:
    store = SessionStore(tmp_path)
    with pytest.raises(StoreError, match="not a session's id"):
        store.load(session_id)
    with pytest.raises(StoreError, match="not a session's id"):
        store.hold(session_id)


def test_broken_files_are_reported_and_passed_over(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    good = stored("hxa-good")
    store.save(good)
    written = json.loads((tmp_path / "hxa-good.json").read_text())
    broken = {
        "empty": "",
        "cut": json.dumps(written)[:-50],
        "list": "[]",
        "other": json.dumps(written),
        "turn": json.dumps(written | {"session_id": "hxa-turn", "history": [{"role": "x"}]}),
        "count": json.dumps(written | {"session_id": "hxa-count", "usage": {"input_tokens": "a"}}),
        "deep": "[" * 100_000,
    }
    for name, text in broken.items():
        (tmp_path / f"hxa-{name}.json").write_text(text)
        with pytest.raises(StoreError):
            store.load(f"hxa-{name}")
    assert store.all() == [good]


def test_a_failed_save_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(tmp_path)
    session = stored("hxa-1")
    store.save(session)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(StoreError, match="No space"):
        store.save(replace(session, history=[]))
    assert store.load("hxa-1") == session
    assert [path.name for path in tmp_path.iterdir()] == ["hxa-1.json"]


def test_calls_without_results_get_one() -> None:
    calls = (ToolCall("a", "bash", {}), ToolCall("b", "bash", {}))
    turn = AssistantTurn(calls=calls)
    done = ToolResult(call_id="a", name="bash", parts=(Text("done"),))
    after = UserTurn((Text("Hello?"),))
    whole = answered([turn, done, after])
    assert whole[:2] == [turn, done]
    missing = whole[2]
    assert isinstance(missing, ToolResult)
    assert (missing.call_id, missing.is_error) == ("b", True)
    assert missing.parts == (Text(f"ERROR: {INTERRUPTED}"),)
    assert whole[3] == after
    assert answered(whole) == whole
