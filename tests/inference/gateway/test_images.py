"""Images through the gateway: beside the inbox to the neuron, kept with conversations, refused by
what the model can do, and fetched from the hosts that are named and no others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from inference.gateway import images as image_fetch
from inference.gateway.images import (
    ImageFetchError,
    ImageParser,
    check_resolved,
    fetch_image,
    image_address,
    without_files,
)
from inference.gateway.request.tokens import token_bounds
from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest, Submit
from inference.protocol.images import ImageRef, VisionInput
from inference.protocol.keys import images_key
from inference.wire.dialect import NO_CONTEXT
from inference.wire.errors import InvalidImageError
from inference.wire.images import ImageFile, ImageRules
from inference.wire.openai import chat as openai_chat
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat, chat_body
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, paris
from tests.inference.image_files import base64_of, data_uri, png
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

CHAT = "/v1/chat/completions"
CAT, DOG = png(30, 20), png(64, 64)
FIRST = "messages[0].content[1].image_url.url"
QWEN = VisionInput(pad_token_id=1, patch_px=16, merge=2, min_pixels=65_536, max_pixels=16_777_216)
CAT_SOURCE = {"type": "base64", "media_type": "image/png", "data": base64_of(CAT)}
OLLAMA = {"role": "user", "content": "What?", "images": [base64_of(CAT)]}


def request_with(*images: str) -> GenerationRequest:
    return openai_chat.parse(msgspec.json.encode(chat_body(*images))).generation


@dataclass
class Found:
    """What the neuron found beside its inbox, by request."""

    neuron: FakeNeuron
    files: list[set[bytes]] = field(default_factory=list)
    expiries_s: list[int] = field(default_factory=list)
    submits: list[Submit] = field(default_factory=list)

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
        turns = chat(self.submits[-1]).messages
        return [image for message in turns for image in message.images]


@pytest_asyncio.fixture
async def found(neuron: FakeNeuron) -> Found:
    neuron.capabilities = ["chat", "vision"]
    await neuron.beat()
    made = Found(neuron)
    neuron.script = made.script
    return made


def turn_of(*content: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": list(content)}]}


SHOWN = {"role": "user", "content": [{"type": "input_image", "image_url": data_uri(CAT)}]}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: chat_body(data_uri(CAT)),
    "/v1/messages": turn_of({"type": "image", "source": CAT_SOURCE}) | {"max_tokens": 9},
    "/api/chat": {"model": "tiny", "stream": False, "messages": [OLLAMA]},
    "/v1/responses": {"model": "tiny", "store": False, "input": [SHOWN]},
}


@each_case("path", ASKED)
async def test_images_go_beside_the_inbox(client: AsgiClient, found: Found, path: str) -> None:
    answer = await client.post(path, ASKED[path])
    assert answer.status == 200
    (image,) = found.images
    assert found.files.pop() == {CAT}
    assert (image.width_px, image.height_px, image.num_bytes) == (30, 20, len(CAT))
    assert type(image) is ImageRef
    assert 0 < found.expiries_s[-1] <= 81
    key = images_key("beast", found.submits[-1].request_id)
    async with asyncio.timeout(60):
        while await found.neuron.client.exists(key):
            await asyncio.sleep(0.01)


@each_case("path", ASKED)
async def test_a_model_of_text_gets_none(client: AsgiClient, neuron: FakeNeuron, path: str) -> None:
    answer = await client.post(path, ASKED[path])
    assert (answer.status, b"vision_unsupported" in answer.body) == (400, True)
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
    bounded = make_client(max_images=1, max_images_bytes=len(CAT) + 1, max_image_pixels=4096)
    for sender, asked, param, words in (
        (client, body, "messages[0].content[3].image_url.detail", "detail"),
        (bounded, chat_body(*2 * [data_uri(CAT)]), FIRST.replace("1", "2"), "2 images; at most 1"),
        (bounded, chat_body(data_uri(png(64, 65))), FIRST, "4,160 pixels"),
    ):
        refused = await sender.post(CHAT, asked)
        assert (refused.status, refused.error["param"]) == (400, param)
        assert words in refused.error["message"]
    assert len(found.submits) == 1


def test_what_travels_holds_no_bytes_and_images_together_are_bounded() -> None:
    request, files = without_files(request_with(data_uri(CAT)), ImageRules())
    assert [file.data for file in files] == [CAT]
    assert base64_of(CAT).encode() not in msgspec.json.encode(request)
    rules = ImageRules(max_total_bytes=len(CAT) + len(DOG) - 1)
    with pytest.raises(InvalidImageError, match="together") as refused:
        without_files(request_with(data_uri(CAT), data_uri(DOG)), rules)
    assert refused.value.param == "messages[0].content[2].image_url.url"


def test_what_images_may_cost() -> None:
    small = VisionInput(pad_token_id=1, patch_px=16, merge=2, min_pixels=64, max_pixels=65_536)
    found = []
    for images, vision in (
        ((), QWEN),
        ((DOG,), QWEN),
        ((), small),
        ((DOG,), small),
        ((DOG,), None),
    ):
        request, _ = without_files(request_with(*map(data_uri, images)), ImageRules())
        no_bounds = {"context_tokens": None, "max_output_tokens": None}
        found.append(token_bounds(request, vision=vision, **no_bounds))
    none, seen, _, few, unknown = found
    assert 64 <= seen.prompt_tokens - none.prompt_tokens <= 64 + 8
    assert 4 <= few.prompt_tokens - found[2].prompt_tokens <= 4 + 8
    assert unknown.prompt_tokens >= seen.prompt_tokens
    assert 64 <= seen.exact_tokens <= 64 + 8
    assert seen.exact_tokens + seen.text_bound == seen.prompt_tokens


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


INSIDE = """127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1
255.255.255.255 ::1 :: fe80::1%eth0 fd00::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::"""
RESOLVERS = ThreadPoolExecutor(4)
DRIP_S, DRIP_INTERVAL_S = 60.0, 0.05


@each_case(
    ("url", "hosts"),
    [
        ("https://images.example.org/a.png?b=1", ("images.example.org",)),
        ("https://IMAGES.example.org/a.png", ("images.example.org",)),
        ("http://images.example.org:80/a.png", ("images.example.org",)),
        ("https://a.cdn.example.org/", ("*.cdn.example.org",)),
        ("https://anywhere.example/", ("*",)),
        ("http://10.0.0.5:8080/a.png", ("10.0.0.5:8080",)),
        ("http://[::1]:8080/a.png", ("[::1]:8080",)),
        *[
            (url, None)
            for url in (
                "https://example.org/",
                "https://evil-cdn.example.org/",
                "https://cdn.example.org.evil.example/",
                "https://images.example.org:8443/",
                "https://images.example.org@evil.example/",
                "https://user:word@images.example.org/",
                "https://images.example.org\\@evil.example/",
                "ftp://images.example.org/",
                "file:///etc/passwd",
                "https:///a.png",
                "https://[::1/",
                "https://images.example.org:99999/",
                "https://images.example.org/a\r\nHost: evil",
            )
        ],
    ],
)
def test_hosts(url: str, hosts: tuple[str, ...] | None) -> None:
    if hosts:
        assert image_address(url, hosts).target.startswith("/")
        return
    with pytest.raises(ImageFetchError):
        image_address(url, ("images.example.org", "*.cdn.example.org"))


@each_case("resolved", INSIDE.split())
def test_a_name_may_not_lead_inside(resolved: str) -> None:
    anywhere = image_address("https://rebound.example/", ("*",))
    check_resolved(anywhere, ["93.184.216.34", "2606:4700::1"])
    check_resolved(image_address("http://nas.lan/", ("nas.lan",)), [resolved])
    for addresses in ([resolved], ["93.184.216.34", resolved]):
        with pytest.raises(ImageFetchError):
            check_resolved(anywhere, addresses)


async def fetched(url: str, hosts: tuple[str, ...], *, max_bytes: int) -> bytes:
    return await fetch_image(url, hosts, max_bytes=max_bytes, resolvers=RESOLVERS)


def shows(asked: Asked, wire: Wire) -> None:
    moved = {"/moved": "/cat.png", "/away": "http://127.0.0.2:1/cat.png", "/round": "/round"}
    if asked.path == "/drip":  # headers without an end, until the client leaves; for a minute
        wire.send(b"HTTP/1.1 200 OK\r\n")
        for _ in range(round(DRIP_S / DRIP_INTERVAL_S)):
            wire.send(b"X")
            time.sleep(DRIP_INTERVAL_S)
    elif asked.path in moved:
        wire.whole(302, b"", "text/plain", location=moved[asked.path])
    else:
        wire.whole(200 if asked.path == "/cat.png" else 404, CAT, "image/png")


@pytest.fixture
def host() -> Iterator[str]:
    with FakeUpstream() as server:
        server.answer = shows
        yield server.origin.removeprefix("http://")


@each_case(
    ("url", "hosts", "max_bytes", "problem"),
    [
        ("http://{host}/cat.png", ["{host}"], len(CAT), None),
        ("http://{host}/moved", ["{host}"], len(CAT), None),
        ("http://{host}/none.png", ["{host}"], 1000, "status 404"),
        ("http://{host}/away", ["{host}"], 1000, "not fetched from this host"),
        ("http://{host}/away", ["{host}", "127.0.0.2:1"], 1000, "leads to another host"),
        ("http://{host}/round", ["{host}"], 1000, "leads on too often"),
        ("http://{host}/cat.png", ["{host}"], 10, "more than 10 bytes"),
        ("http://localhost:{port}/cat.png", ["*"], 1000, "not fetched from this host"),
        ("http://localhost/cat.png", ["*"], 1000, "not fetched from this host"),
    ],
)
async def test_an_image_is_fetched_or_why_it_is_not(
    host: str, url: str, hosts: list[str], max_bytes: int, problem: str | None
) -> None:
    named = {"host": host, "port": host.split(":")[1]}
    allowed = tuple(each.format(**named) for each in hosts)
    fetching = fetched(url.format(**named), allowed, max_bytes=max_bytes)
    if problem is None:
        assert await fetching == CAT
        return
    with pytest.raises(ImageFetchError, match=problem):
        await fetching


@each_case(
    ("slow", "limit_s"), [("the host", 0.0), ("the host's headers", 0.5), ("the resolver", 0.2)]
)
async def test_time_is_bounded(
    host: str, monkeypatch: pytest.MonkeyPatch, slow: str, limit_s: float
) -> None:
    monkeypatch.setattr(image_fetch, "TIME_LIMIT_S", limit_s)
    answers, url = threading.Event(), f"http://{host}/cat.png"
    if slow == "the resolver":
        monkeypatch.setattr(image_fetch.socket, "getaddrinfo", lambda *_, **__: answers.wait(60))
        url, host = "https://images.example.org/a.png", "*"
    elif slow == "the host's headers":
        url = f"http://{host}/drip"
    began_s = time.monotonic()
    try:
        with pytest.raises(ImageFetchError, match="could not be fetched"):
            await fetched(url, (host,), max_bytes=1000)
    finally:
        answers.set()
    assert time.monotonic() - began_s < DRIP_S, "long before the host would have ended"


async def test_a_body_is_read_with_what_was_fetched_or_its_image_refused(host: str) -> None:
    async def images_of(path: str) -> list[Any]:
        part = {"type": "image_url", "image_url": {"url": f"http://{host}{path}"}}
        ask = partial(openai_chat.parse, orjson.dumps(turn_of(part)), NO_CONTEXT)
        reader = ImageParser(ImageRules(fetches=True), (host,))
        parsed: Any = await reader.parsed(ask, num_bytes=100)
        return [*parsed.generation.input.messages[0].images]

    (image,) = await images_of("/cat.png")
    assert isinstance(image, ImageFile) and image.data == CAT
    with pytest.raises(InvalidImageError, match="status 404") as refused:
        await images_of("/none.png")
    assert refused.value.param == "messages[0].content[0].image_url.url"
