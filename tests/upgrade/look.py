"""What users see of a database, over the API where it has a page for it, and what they may add."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from fleet import selectors
from fleet.upstreams import unseal
from inference.batches.files import FileStore
from inference.batches.services import batch_find, file_find
from inference.conversations.services import history_items
from metering.ledger import store
from metering.money import Prices
from metering.playground.conversations import conversation_find
from tests.metering.operations import reserve, settle

ENDED_UNIX_S = 4_103_697_600.0
"""Noon of 15 January 2100, UTC: the month of the budgets lasts longer than any archive."""
PAGES = (
    "me",
    "usage?by=key&from=2100-01-15&to=2100-01-15",
    *("requests", "accounts", "members", "keys", "budgets", "audit"),
    *("invitations", "policy", "devices", "replicas", "load-jobs", "downloads"),
    *("catalogue", "aliases", "upstreams", "models.toml", "bench/runs"),
)


class Known(msgspec.Struct, kw_only=True):
    """What the users of a release know of it: their secrets, and the ids that they were given."""

    key: str
    username: str
    password: str
    upstream_key: str
    response: str
    files: list[str]
    batch: str
    conversation: str


class Kept(msgspec.Struct):
    """Goes into a release's archive as one more file of a client."""

    known: Known
    seen: dict[str, Any]


def kept_file() -> Path:
    return settings.CONFIG.stored_files_dir / "seen.json"


def seen(known: Known) -> dict[str, Any]:
    found = {page: _page(known.key, page) for page in PAGES}
    account = found["me"]["account"]
    user = User.objects.get(username=known.username)
    upstream = selectors.upstream_known("gpu-box")
    conversation = conversation_find(user_id=user.pk, conversation_id=uuid.UUID(known.conversation))
    contents = FileStore(settings.CONFIG.stored_files_dir)
    found |= {
        "login": user.check_password(known.password),
        "upstream's key": unseal(upstream.sealed_secret, settings.SECRET_KEY) == known.upstream_key,
        "response": history_items(known.response, account=account),
        "batch": batch_find(known.batch, account=account, dialect="openai"),
        "files": [file_find(id, account=account) for id in known.files],
        "contents": [contents.path(id).read_text() for id in known.files],
        "conversation": json.loads(conversation.state),
    }
    values: dict[str, Any] = msgspec.to_builtins(found)
    return values


def spent_more(known: Known) -> list[tuple[str, int]]:
    """Reserves and settles one more request of 40 and 30 tokens, which costs 30 micro-USD. Returns
    the unit of each of the key's budgets, and how much more of it is spent."""
    me = _page(known.key, "me")
    whose: dict[str, Any] = {
        "account": me["account"],
        "key": me["key"],
        "budgets": tuple(budget["id"] for budget in me["budgets"]),
        "prices": Prices(output_micro_usd=1_000_000),
    }
    request_id = uuid.uuid4().hex
    store.apply([reserve(request_id, now_unix_s=ENDED_UNIX_S, **whose)])
    store.apply([settle(request_id, ended_unix_s=ENDED_UNIX_S, **whose)])
    return [
        (now["unit"], now["spent"] - before["spent"])
        for before, now in zip(me["budgets"], _page(known.key, "me")["budgets"], strict=True)
    ]


def _page(key: str, page: str) -> Any:
    client = Client(headers={"host": "localhost", "authorization": f"Bearer {key}"})
    response = client.get(f"/api/{page}")
    assert response.status_code == 200, (page, response.content)
    return response.json()
