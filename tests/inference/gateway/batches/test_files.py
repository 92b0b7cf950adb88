"""Files of batches: an account's share, their ids, and large ones in pieces."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from inference.batches.files import FileStore
from inference.gateway.server.bodies import FILE_PIECE_BYTES
from inference.neuron.events.parts import batches_within
from inference.protocol.events import MAX_BATCH_BYTES, Accepted, Embedded, Event, Usage
from inference.protocol.generation import Submit
from tests.inference.gateway.batches_support import KEYED, line, results, until_ended
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]


async def test_an_account_keeps_so_much_and_no_more(make_client: MakeClient) -> None:
    client = make_client(max_stored_file_bytes=100, max_open_batches=0)
    large = {"custom_id": "a", "params": {"text": "x" * 100}}
    full = await client.post("/v1/messages/batches", {"requests": [large]}, headers=KEYED)
    assert (full.status, full.json["error"]["details"]["error_code"]) == (429, "insufficient_quota")
    small = {"custom_id": "a", "params": {}}
    many = await client.post("/v1/messages/batches", {"requests": [small]}, headers=KEYED)
    assert (many.status, "open batches" in many.json["error"]["message"]) == (429, True)


def test_a_file_is_not_looked_up_by_a_path(tmp_path: Path) -> None:
    for name in ("../secret", "file-../x", "file-" + "g" * 32, "/etc/passwd"):
        with pytest.raises(AssertionError):
            FileStore(tmp_path).path(name)


async def test_a_large_file_comes_and_goes_in_pieces(make_client: MakeClient) -> None:
    content = b"\n".join(line(f"{n:07}").encode() for n in range(20_000))
    client = make_client(max_body_bytes=2 * len(content))
    fields = (("purpose", b"batch"), ('file"; filename="requests.jsonl', content))
    form = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in fields
    )
    form += b"--x--\r\n"
    parts = [form[start : start + 65_536] for start in range(0, len(form), 65_536)]
    headers = KEYED | {"content-type": "multipart/form-data; boundary=x"}
    file = (await client.post("/v1/files", parts=parts, headers=headers)).json
    assert file["bytes"] == len(content)
    answer = await client.get(f"/v1/files/{file['id']}/content", headers=KEYED)
    assert answer.body == content
    assert int(answer.headers["content-length"]) == len(content)
    assert max(answer.piece_sizes) <= FILE_PIECE_BYTES < len(content) / 5


async def test_a_large_answer_is_one_line_of_the_results(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    vectors = [bytes([n % 100]) * 4096 for n in range(300)]

    async def embeds(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        usage = Usage(prompt_tokens=1, completion_tokens=0)
        answer = Embedded(request_id=submit.request_id, vectors=vectors, usage=usage)
        for batch in batches_within(MAX_BATCH_BYTES - 4096, [answer]):
            yield batch

    neuron.script = embeds
    body = {"model": "tiny", "input": ["x"] * 300, "encoding_format": "base64"}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    file = await sdk.files.create(
        file=("requests.jsonl", json.dumps(asked).encode()), purpose="batch"
    )
    made = await sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    ended = await until_ended(sdk, made.id)
    (answered,) = (await results(sdk, ended.output_file_id)).values()
    data = answered["response"]["body"]["data"]
    assert [base64.b64decode(one["embedding"]) for one in data] == vectors
