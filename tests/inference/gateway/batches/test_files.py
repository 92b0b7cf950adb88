"""Files of batches: an account's share, their ids, uploads, expiry, and large ones in pieces."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from django.utils import timezone

from inference.batches.files import FileStore
from inference.batches.models import StoredFile
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.batches.conftest import KEYED
from tests.inference.gateway.bodies import until
from tests.inference.gateway.conftest import MakeClient

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]
BOUNDARY = "a-boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
PURPOSE = ('name="purpose"', b"batch")
HOUR: Any = {"anchor": "created_at", "seconds": 3600}


async def test_an_account_keeps_so_much_and_no_more(
    make_client: MakeClient, tmp_path: Path
) -> None:
    client = make_client(max_stored_file_bytes=100, max_open_batches=0)
    large = {"custom_id": "a", "params": {"text": "x" * 100}}
    full = await client.post("/v1/messages/batches", {"requests": [large]}, headers=KEYED)
    assert (full.status, full.json["error"]["details"]["error_code"]) == (429, "insufficient_quota")
    small = {"custom_id": "a", "params": {}}
    many = await client.post("/v1/messages/batches", {"requests": [small]}, headers=KEYED)
    assert (many.status, "open batches" in many.json["error"]["message"]) == (429, True)
    for name in ("../secret", "file-../x", "file-" + "g" * 32, "/etc/passwd"):
        with pytest.raises(AssertionError):
            FileStore(tmp_path).path(name)


def form(*parts: tuple[str, bytes]) -> bytes:
    """Each is a disposition's words and a content."""
    written = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {words}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for words, content in parts
    )
    return written + f"--{BOUNDARY}--\r\n".encode()


@each_case(
    ("content_type", "body", "status", "found"),
    [
        (FORM, form(PURPOSE, ('name="file"; filename="a.jsonl"', b"{}\n")), 200, "a.jsonl"),
        # As aiohttp sends it.
        (FORM, form(PURPOSE, ("name=\"file\"; filename*=utf-8''%C3%A4", b"")), 200, "ä"),
        (
            FORM,
            form(PURPOSE, ('name="mood"', b""), ('name="file"; filename="a"', b"")),
            400,
            "mood",
        ),
        ("application/json", b"{}", 400, None),
        ("multipart/form-data", b"no boundary", 400, None),
        (FORM, b"nothing of the kind", 400, None),
        (FORM, form(PURPOSE), 400, "file"),
        (FORM, form(('name="file"', b"no name")), 400, "file"),
        (FORM, form(*((f'name="field-{number}"', b"") for number in range(1001))), 400, None),
        (FORM, form(*(('name="file"; filename="a"', b"") for _ in range(101))), 400, "file"),
    ],
)
async def test_forms(
    client: AsgiClient, content_type: str, body: bytes, status: int, found: str | None
) -> None:
    headers = KEYED | {"content-type": content_type}
    answer = await client.post("/v1/files", parts=[body], headers=headers)
    assert answer.status == status
    assert (answer.json["filename"] if status == 200 else answer.error["param"]) == found


async def test_an_expired_file_is_gone(
    kept: DatabaseThreads, sdk: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    for expiry, field in (
        ({"anchor": "last_active_at", "seconds": 3600}, "anchor"),
        ({"anchor": "created_at", "seconds": 60}, "seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "seconds"),
        ({"anchor": "created_at"}, "seconds"),
        ({"seconds": 3600}, "anchor"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await upload(sdk, expires_after=expiry)
        assert refused.value.param == f"expires_after[{field}]"
    first, second = await upload(sdk, expires_after=HOUR), await upload(sdk)
    assert (first.expires_at, second.expires_at) == (first.created_at + 3600, None)
    config = gateway.config
    files = FileStore(config.files_dir or config.data_dir / "files")
    assert files.has(first.id)

    def expire() -> None:
        past = timezone.now() - timedelta(seconds=1)
        StoredFile.objects.filter(pk=first.id).update(expires_at=past)

    await kept.query(expire)
    for ask in (sdk.files.retrieve, sdk.files.content):
        with pytest.raises(openai.NotFoundError):
            await ask(first.id)
    assert [file.id async for file in sdk.files.list()] == [second.id]
    # Another upload that will expire has the gateway look at once.
    last = await upload(sdk, expires_after=HOUR)
    await until(lambda: not files.has(first.id))
    assert files.has(second.id) and files.has(last.id)
    rows = await kept.query(lambda: set(StoredFile.objects.values_list("pk", flat=True)))
    assert second.id in rows and last.id in rows


async def upload(sdk: openai.AsyncOpenAI, **more: Any) -> Any:
    return await sdk.files.create(file=("a.jsonl", b"{}"), purpose="batch", **more)
