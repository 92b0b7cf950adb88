"""Conversations are kept for their owner alone, within bounds, and go out as files."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from metering.playground import conversations
from metering.playground.models import Conversation
from tests.metering.callers import person

pytestmark = pytest.mark.django_db

PLACE = "/playground/conversations"
IMAGE = "data:image/png;base64,AA=="
CALL = {"id": "1", "name": "get_weather", "arguments": '{"city": "```"}', "result": "rain"}
ANSWER = {
    "role": "assistant",
    "model": "tiny",
    "finish": "stop",
    "error": "",
    "requestId": "ab",
    "text": "Take an `umbrella`.",
    "thinking": "It is north.\nIt rains.",
    "calls": [CALL],
    "stats": {"tokens": 3, "tokensPerS": 4.5, "isCut": False, "firstMs": None},
    "isRunning": False,
    "beside": [{"role": "assistant", "model": "other", "text": "Nimm einen Schirm. STRASSE"}],
}
STATE = {
    "model": "tiny",
    "beside": ["other"],
    "account": "ours",
    "system": "You know the weather.",
    "thinking": "on",
    "tools": "[]",
    "schema": "",
    "sampling": {"temperature": "0.5"},
    "turns": [{"role": "user", "text": "  Rain in\nOslo?", "images": [IMAGE]}, ANSWER],
}


def put(client: Client, id_: Any, state: Any, revision: int | str = 0) -> Any:
    body = state if isinstance(state, bytes) else json.dumps(state)
    return client.put(
        f"{PLACE}/{id_}?revision={revision}", data=body, content_type="application/json"
    )


def saved(client: Client, state: Any = STATE, revision: int = 0, id_: str = "") -> str:
    id_ = id_ or str(uuid.uuid4())
    answer = put(client, id_, state, revision)
    assert answer.status_code == 200, answer.content
    assert (answer.json()["id"], answer.json()["revision"]) == (id_, revision + 1)
    return id_


def refused(answer: Any) -> tuple[int, str]:
    assert answer.json().keys() == {"error"} and answer.json()["error"]["message"]
    return answer.status_code, answer.json()["error"]["code"]


def asked(words: str) -> dict[str, Any]:
    return {**STATE, "system": "", "turns": [{"role": "user", "text": words}]}


def listed(client: Client, words: str = "") -> list[str]:
    return [one["title"] for one in client.get(PLACE, {"q": words}).json()["data"]]


def test_it_comes_back_as_it_was_saved_images_included() -> None:
    ann = person("ann")
    id_ = saved(ann)
    found = ann.get(f"{PLACE}/{id_}")
    assert "no-store" in found["Cache-Control"]
    state = found.json()["state"]
    question, answer = state["turns"]
    assert (question["text"], question["images"]) == ("  Rain in\nOslo?", [IMAGE])
    assert answer["beside"][0]["text"] == "Nimm einen Schirm. STRASSE"
    assert answer | ANSWER | {"beside": answer["beside"]} == answer
    assert state | STATE | {"turns": state["turns"]} == state
    assert listed(ann) == ["Rain in Oslo?"]
    words = "a\x00b \U0001f327"  # which databases refuse
    id_ = saved(ann, asked(words))
    assert ann.get(f"{PLACE}/{id_}").json()["state"]["turns"][0]["text"] == words
    assert listed(ann, "A\x00B") == ["ab \U0001f327"]
    saved(ann, asked("elsewhere, 100 %"))  # questions and all answers are found, in any case
    for words in ("OSLO", "schirm", "Straße", "it rains", "know the weather"):
        assert listed(ann, words) == ["Rain in Oslo?"], words
    assert listed(ann, "100 %") == listed(ann, "%") == ["elsewhere, 100 %"]
    assert listed(ann, "_") == listed(ann, "nowhere") == []
    Conversation.objects.all().delete()
    id_ = saved(ann, asked("one"))
    saved(ann, asked("two"), 1, id_)
    for revision in (1, 0):  # an older one does not overwrite a newer one
        assert refused(put(ann, id_, asked("three"), revision)) == (409, "changed_elsewhere")
    assert listed(ann) == ["two"]
    assert refused(put(ann, uuid.uuid4(), asked("four"), 1)) == (404, "not_found")
    saved(ann, asked("one"))
    assert ann.delete(f"{PLACE}/{id_}").status_code == 204
    assert listed(ann) == ["one"]
    assert refused(ann.delete(f"{PLACE}/{id_}")) == (404, "not_found")
    User.objects.get(username="ann").delete()
    assert not Conversation.objects.exists()


def test_nobody_else_sees_changes_or_deletes_it() -> None:
    ann, eve, operator = person("ann"), person("eve"), person("opal", is_superuser=True)
    id_ = saved(ann)
    for other in (eve, operator):
        assert listed(other) == []
        assert refused(other.get(f"{PLACE}/{id_}")) == (404, "not_found")
        assert refused(other.get(f"{PLACE}/{id_}/export?format=json")) == (404, "not_found")
        assert refused(other.delete(f"{PLACE}/{id_}")) == (404, "not_found")
        assert refused(put(other, id_, STATE, 1)) == (404, "not_found")
        assert refused(put(other, id_, STATE)) == (409, "changed_elsewhere")
    for answer in (Client().delete(f"{PLACE}/{id_}"), put(Client(), id_, STATE)):
        assert refused(answer) == (401, "login_required")
    ann.handler.enforce_csrf_checks = True  # forged requests change nothing
    assert ann.delete(f"{PLACE}/{id_}").status_code == 403
    assert put(ann, id_, asked("evil"), 1).status_code == 403
    assert listed(ann) == ["Rain in Oslo?"]


def test_what_is_no_conversation_is_refused(admin_client: Client) -> None:
    for state, reason in (
        (b"{", "truncated"),
        (b"[]", "object"),
        ({"turns": [{"role": "system"}]}, "role"),
        ({"turns": [{"text": "x"}]}, "role"),
        ({"turns": [{"role": "user", "wordy": 1}]}, "wordy"),
        ({"turns": [{"role": "user", "images": [1]}]}, "images"),
        ({"turns": [], "more": 1}, "more"),
        ({"model": "tiny"}, "turns"),
        (b'{"turns": [{"role": "user", "text": "\xff"}]}', "conversation"),
        (b"[" * 100_000, "conversation"),
    ):
        answer = put(admin_client, uuid.uuid4(), state)
        assert refused(answer) == (400, "invalid_value")
        assert reason in answer.json()["error"]["message"]
    for revision in ("", "-1", "one", "9999999999"):
        answer = put(admin_client, uuid.uuid4(), STATE, revision)
        assert refused(answer) == (400, "invalid_value")
    assert not Conversation.objects.exists()


def test_size_and_number_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ann, eve = person("ann"), person("eve")
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 2)
    id_ = saved(ann, asked("one"))
    saved(ann, asked("two"))
    answer = put(ann, uuid.uuid4(), asked("three"))
    assert refused(answer) == (409, "too_many")
    assert "2 conversations" in answer.json()["error"]["message"]
    saved(ann, asked("one, continued"), 1, id_)
    saved(eve, asked("hers"))

    size = Conversation.objects.filter(pk=id_).get().num_bytes
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS_BYTES", 2 * size)
    answer = put(ann, id_, asked("x" * size), 2)
    assert refused(answer) == (413, "too_large")
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_BYTES", size - 1)
    answer = put(eve, uuid.uuid4(), asked("one, continued"))
    assert refused(answer) == (413, "too_large")
    assert listed(ann) == ["one, continued", "two"]
    monkeypatch.undo()  # a large one passes the limit of forms, a larger one is not read whole
    image = "data:image/png;base64," + "A" * 6_000_000
    state = {**STATE, "turns": [{"role": "user", "text": "see", "images": [image]}]}
    id_ = saved(ann, state)
    assert ann.get(f"{PLACE}/{id_}").json()["state"]["turns"][0]["images"] == [image]
    body = b" " * (conversations.MAX_CONVERSATION_BYTES + 1)
    assert refused(put(ann, uuid.uuid4(), body)) == (413, "too_large")


def test_it_goes_out_as_json_and_markdown() -> None:
    ann = person("ann")
    id_ = saved(ann)
    answer = ann.get(f"{PLACE}/{id_}/export?format=json")
    assert answer["Content-Type"] == "application/json"
    assert answer["Content-Disposition"].startswith('attachment; filename="conversation-')
    whole = json.loads(answer.content)
    assert whole["title"] == "Rain in Oslo?" and whole["turns"][0]["images"] == [IMAGE]
    text = ann.get(f"{PLACE}/{id_}/export?format=md").text
    assert text.startswith("# Rain in Oslo?\n\n")
    for part in (
        "## System prompt\n\nYou know the weather.",
        f"## Question\n\n![Image 1]({IMAGE})\n\n  Rain in\nOslo?",
        "## Answer of tiny\n\n> It is north.\n> It rains.\n\nTake an `umbrella`.",
        'Call of `get_weather`:\n\n````json\n{"city": "```"}\n````\n\nResult:\n\n```\nrain\n```',
        "## Answer of other\n\nNimm einen Schirm. STRASSE",
    ):
        assert part in text, text
    assert refused(ann.get(f"{PLACE}/{id_}/export?format=pdf")) == (400, "invalid_value")
