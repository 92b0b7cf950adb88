"""Uploaded files that expire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import openai
import pytest
from django.utils import timezone

from inference.batches.files import FileStore
from inference.batches.models import StoredFile
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True)]
HOUR: Any = {"anchor": "created_at", "seconds": 3600}


async def test_an_expired_file_is_gone(
    kept: DatabaseThreads, sdk: openai.AsyncOpenAI, gateway: Gateway, neuron: FakeNeuron
) -> None:
    made = [
        await sdk.files.create(file=("a.jsonl", b"{}"), purpose="batch", expires_after=HOUR),
        await sdk.files.create(file=("b.jsonl", b"{}"), purpose="batch"),
    ]
    assert made[0].expires_at == made[0].created_at + 3600
    assert made[1].expires_at is None
    config = gateway.config
    files = FileStore(config.files_dir or config.data_dir / "files")
    assert files.has(made[0].id)

    def expire() -> None:
        past = timezone.now() - timedelta(seconds=1)
        StoredFile.objects.filter(pk=made[0].id).update(expires_at=past)

    await kept.query(expire)
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(made[0].id)
    with pytest.raises(openai.NotFoundError):
        await sdk.files.content(made[0].id)
    assert [file.id async for file in sdk.files.list()] == [made[1].id]
    # Another upload that will expire has the gateway look at once.
    last = await sdk.files.create(file=("c.jsonl", b"{}"), purpose="batch", expires_after=HOUR)
    await until(lambda: not files.has(made[0].id))
    assert files.has(made[1].id) and files.has(last.id)
    rows = await kept.query(lambda: set(StoredFile.objects.values_list("pk", flat=True)))
    assert made[1].id in rows and last.id in rows


@pytest.mark.parametrize(
    ("expiry", "param"),
    [
        ({"anchor": "last_active_at", "seconds": 3600}, "expires_after[anchor]"),
        ({"anchor": "created_at", "seconds": 60}, "expires_after[seconds]"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "expires_after[seconds]"),
        ({"anchor": "created_at"}, "expires_after[seconds]"),
        ({"seconds": 3600}, "expires_after[anchor]"),
    ],
)
async def test_other_expiries_are_refused(
    kept: DatabaseThreads, sdk: openai.AsyncOpenAI, neuron: FakeNeuron, expiry: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(file=("a", b"{}"), purpose="batch", expires_after=expiry)
    assert refused.value.param == param
