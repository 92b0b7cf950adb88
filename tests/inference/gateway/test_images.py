"""Images through the gateway: beside the inbox to the neuron, kept with conversations, refused by
what the model can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from inference.gateway.images import image_rules, without_files
from inference.gateway.request.tokens import TokenBounds, token_bounds
from inference.protocol.events import Event
from inference.protocol.generation import ChatInput, GenerationRequest, Submit
from inference.protocol.images import ImageRef, VisionInput, image_layout
from inference.protocol.keys import images_key
from inference.wire.common.parts import ImageFile, ImageRules
from inference.wire.errors import InvalidImageError
from inference.wire.openai.chat import request as openai_chat
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, paris
from tests.inference.image_files import base64_of, data_uri, png

CHAT = "/v1/chat/completions"
CAT, DOG = png(30, 20), png(64, 64)
QWEN = VisionInput(pad_token_id=1, patch_px=16, merge=2, min_pixels=65_536, max_pixels=16_777_216)
CAT_SOURCE = {"type": "base64", "media_type": "image/png", "data": base64_of(CAT)}
OLLAMA = {"role": "user", "content": "What?", "images": [base64_of(CAT)]}


def request_with(*images: str) -> GenerationRequest:
    return openai_chat.parse(msgspec.json.encode(chat_body(*images))).generation


class Found:
    """What the neuron found beside its inbox, by request."""

    def __init__(self, neuron: FakeNeuron) -> None:
        self.neuron = neuron
        self.files: list[set[bytes]] = []
        self.expiries_s: list[int] = []
        self.submits: list[Submit] = []

    async def script(self, submit: Submit) -> AsyncIterator[list[Event]]:
        key = images_key(self.neuron.name, submit.request_id)
        self.submits.append(submit)
        self.files.append(set((await self.neuron.client.hgetall(key)).values()))
        self.expiries_s.append(await self.neuron.client.ttl(key))
        async for events in paris(submit):
            yield events

    @property
    def images(self) -> list[ImageRef]:
        """Returns the images of the last request."""
        chat = self.submits[-1].request.input
        assert isinstance(chat, ChatInput)
        return [image for message in chat.messages for image in message.images]


@pytest_asyncio.fixture
async def found(neuron: FakeNeuron) -> Found:
    neuron.capabilities = ["chat", "vision"]
    await neuron.beat()
    made = Found(neuron)
    neuron.script = made.script
    return made


def turn_of(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


ANTHROPIC = {
    "model": "tiny",
    "max_tokens": 9,
    "messages": [turn_of({"type": "image", "source": CAT_SOURCE})],
}
OPENAI = turn_of({"type": "input_image", "image_url": data_uri(CAT)})
ASKED: dict[str, dict[str, Any]] = {
    CHAT: chat_body(data_uri(CAT)),
    "/v1/messages": ANTHROPIC,
    "/api/chat": {"model": "tiny", "stream": False, "messages": [OLLAMA]},
    "/v1/responses": {"model": "tiny", "store": False, "input": [OPENAI]},
}


@each_case("path", ASKED)
async def test_images_go_beside_the_inbox(client: AsgiClient, found: Found, path: str) -> None:
    found.files.clear()
    found.expiries_s.clear()
    answer = await client.post(path, ASKED[path])
    assert answer.status == 200
    (image,) = found.images
    assert found.files == [{CAT}]
    assert (image.width_px, image.height_px, image.num_bytes) == (30, 20, len(CAT))
    assert type(image) is ImageRef
    (expiry_s,) = found.expiries_s
    assert 0 < expiry_s <= 81
    key = images_key("beast", found.submits[-1].request_id)
    async with asyncio.timeout(60):
        while await found.neuron.client.exists(key):
            await asyncio.sleep(0.01)


@each_case("path", ASKED)
async def test_a_model_of_text_gets_none(client: AsgiClient, neuron: FakeNeuron, path: str) -> None:
    answer = await client.post(path, ASKED[path])
    assert answer.status == 400
    assert b"vision_unsupported" in answer.body
    assert b"reads text only" in answer.body
    assert neuron.frames == []


async def test_several_images_and_their_bounds(make_client: MakeClient, found: Found) -> None:
    client = make_client()
    body = chat_body(data_uri(CAT), data_uri(DOG), data_uri(CAT))
    last = body["messages"][0]["content"][-1]["image_url"]
    last["detail"] = "low"
    assert (await client.post(CHAT, body)).status == 200
    assert found.files == [{CAT, DOG}]
    assert [one.is_low_detail for one in found.images] == [False, False, True]
    last["detail"] = "lowest"
    refused = await client.post(CHAT, body)
    assert refused.status == 400 and refused.error["param"].endswith(".image_url.detail")
    client = make_client(max_images=1, max_images_bytes=len(CAT) + 1, max_image_pixels=4096)
    many = await client.post(CHAT, chat_body(data_uri(CAT), data_uri(CAT)))
    assert (many.status, many.error["code"]) == (400, "invalid_image")
    assert many.error["param"] == "messages[0].content[2].image_url.url"
    assert "2 images; at most 1" in many.error["message"]
    large = await client.post(CHAT, chat_body(data_uri(png(64, 65))))
    assert "4,160 pixels" in large.error["message"]
    assert len(found.submits) == 1


def test_what_travels_holds_no_bytes_and_images_together_are_bounded(config: Any) -> None:
    operators = image_rules(config)
    assert (operators.max_images, operators.fetches) == (config.max_images, False)
    request, files = without_files(request_with(data_uri(CAT)), ImageRules())
    assert [file.data for file in files] == [CAT]
    assert base64_of(CAT).encode() not in msgspec.json.encode(request)
    assert not any(isinstance(one, ImageFile) for one in request.input.messages[0].images)  # type: ignore[union-attr]
    rules = ImageRules(max_total_bytes=len(CAT) + len(DOG) - 1)
    with pytest.raises(InvalidImageError, match="together") as refused:
        without_files(request_with(data_uri(CAT), data_uri(DOG)), rules)
    assert refused.value.param == "messages[0].content[2].image_url.url"


def test_what_images_may_cost() -> None:
    bare, _ = without_files(request_with(), ImageRules())
    one, _ = without_files(request_with(data_uri(DOG)), ImageRules())
    seen, unseen = bounds_of(one, QWEN), bounds_of(bare, QWEN)
    assert 64 <= seen.prompt_tokens - unseen.prompt_tokens <= 64 + 8
    small = VisionInput(pad_token_id=1, patch_px=16, merge=2, min_pixels=64, max_pixels=65_536)
    num_small = bounds_of(one, small).prompt_tokens - bounds_of(bare, small).prompt_tokens
    assert 4 <= num_small <= 4 + 8
    assert bounds_of(one, None).prompt_tokens >= seen.prompt_tokens
    assert 64 <= seen.exact_tokens <= 64 + 8
    assert seen.exact_tokens + seen.text_bound == seen.prompt_tokens
    # The text between the parts of an image is bounded by its bytes.
    tiles = VisionInput(
        pad_token_id=1,
        patch_px=16,
        merge=4,
        min_pixels=0,
        max_pixels=512**2,
        image_px=128,
        placeholder="<image>",
        written="<global-img><image>",
        division="tiles",
        part="<row_{row}_col_{column}><image>",
        row_break="\n",
        parts_end="\n\n<global-img><image>",
    )
    bare, _ = without_files(request_with(), ImageRules())
    one, _ = without_files(request_with(data_uri(DOG)), ImageRules())
    (image,) = one.input.images  # type: ignore[union-attr]
    layout = image_layout(image.width_px, image.height_px, tiles)
    assert layout.num_runs > 2
    seen, unseen = bounds_of(one, tiles), bounds_of(bare, tiles)
    pads = layout.num_tokens(tiles.merge)
    assert pads <= seen.exact_tokens <= pads + 8
    text = len(tiles.text_of(layout).encode())
    assert text <= seen.text_bound - unseen.text_bound <= 2 * text
    assert seen.text_bytes == unseen.text_bytes, "its client sent none of it"


def bounds_of(request: GenerationRequest, vision: VisionInput | None) -> TokenBounds:
    return token_bounds(request, context_tokens=None, max_output_tokens=None, vision=vision)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept")
async def test_conversations_keep_their_images(client: AsgiClient, found: Found) -> None:
    image = {"type": "input_image", "image_url": data_uri(CAT), "detail": "low"}

    async def ask(content: Any, **more: Any) -> Any:
        return await client.post("/v1/responses", {"model": "tiny", "input": content, **more})

    first = (await ask([{"role": "user", "content": [image]}])).json["id"]
    second = (await ask("And now?", previous_response_id=first)).json["id"]
    assert found.files == [{CAT}, {CAT}]
    assert [one.is_low_detail for one in found.images] == [True]
    listed = await client.get(f"/v1/responses/{first}/input_items")
    (item,) = listed.json["data"]
    assert item["content"] == [image]
    assert (await client.open("DELETE", f"/v1/responses/{first}").finish()).status == 200
    assert (await ask("x", previous_response_id=second)).status == 400
