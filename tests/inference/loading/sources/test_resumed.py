"""A download that was cancelled in the middle is continued by the next one, and is listed as what
it is meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from inference.loading.sources import resumed
from inference.loading.sources.cached import list_cached
from inference.loading.sources.hub_sources import hub_cache_dir, repository_dir
from inference.loading.sources.resumed import partial_of
from inference.neuron.loads.files import Fetcher
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress
from tests.cases import each_case
from tests.inference.loading.fake_hub import FakeHub, serving

WEIGHTS = random.Random(8).randbytes(1_500_000)
HALF = 1_200_000
WRITTEN = constants.DOWNLOAD_CHUNK_SIZE
"""What huggingface_hub writes at once, of what it has received."""
LARGE_BYTES = WRITTEN * 3 // 2
Change = Callable[[Path], object]
SPEC = LoadSpec(job_id="j", model="m", source="huggingface:org/tiny", file="Q4_0")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {"tokenizer.json": b"{}", "x-Q4_0.gguf": WEIGHTS, "x-Q8_0.gguf": WEIGHTS[::-1]}
    with serving(FakeHub(files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def partial(hub: FakeHub, cache: Path, name: str = "x-Q4_0.gguf") -> Path:
    repository = repository_dir(hub_cache_dir(cache), "org/tiny")
    return partial_of(repository / "blobs" / hub.etag(name))


@pytest.mark.slow
def test_a_pull_after_a_cancel_asks_for_the_rest_alone(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["x-Q4_0.gguf"] = large = random.Random(8).randbytes(LARGE_BYTES)
    hub.stop_at = LARGE_BYTES * 4 // 5
    file = partial(hub, tmp_path)
    cancelled = Fetcher(tmp_path, lambda: 1 << 30).fetch(
        SPEC, lambda _: None, lambda: file.is_file() and file.stat().st_size >= WRITTEN
    )
    assert cancelled is None
    hub.stop_at = None
    done = partial(hub, tmp_path).stat().st_size
    (model,) = list_cached(tmp_path)
    assert model.is_partial and model.partial_bytes == done
    assert model.wanted_bytes == LARGE_BYTES + 2

    reported: list[LoadProgress] = []
    fetched = Fetcher(tmp_path, lambda: 1 << 30).fetch(SPEC, reported.append, lambda: False)
    assert fetched is not None and Path(fetched.weights[0]).read_bytes() == large
    assert [wanted for name, wanted in hub.ranges if name == "x-Q4_0.gguf"] == [
        "",
        f"bytes={done}-",
    ]
    assert min(one.done for one in reported) >= done and reported[-1].done == reported[-1].total
    (model,) = list_cached(tmp_path)
    assert not model.is_partial and model.partial_bytes == 0
    assert not list(tmp_path.rglob("*.incomplete"))


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[17] ^= 1
    file.write_bytes(content)


def continued(hub: FakeHub, folder: Path, content: bytes, change: Change) -> list[str]:
    """The ranges that are asked for where the download left ``content``."""
    target = folder / hub.etag("x-Q4_0.gguf")
    partial_of(target).write_bytes(content)
    change(partial_of(target))
    hub.ranges.clear()
    url, sha256 = f"{hub.url}/org/tiny/resolve/main/x-Q4_0.gguf", target.name
    resumed.transfer(url, target, num_bytes=len(WEIGHTS), headers={}, sha256=sha256)
    assert target.read_bytes() == WEIGHTS and not partial_of(target).exists()
    return [wanted for _, wanted in hub.ranges]


@each_case("serves_ranges", [True, False])
@each_case(
    ("change", "asked"),
    [
        (damage, [f"bytes={HALF}-"]),
        (lambda file: file.write_bytes(bytes(len(WEIGHTS) + 1)), [""]),
        (lambda file: file.write_bytes(WEIGHTS), []),
    ],
)
def test_whatever_came_before_the_file_is_right_in_the_end(
    hub: FakeHub, tmp_path: Path, change: Change, asked: list[str], serves_ranges: bool
) -> None:
    hub.serves_ranges = serves_ranges
    assert continued(hub, tmp_path, WEIGHTS[:HALF], change)[:1] == asked


@each_case(("change", "num_pieces"), [(lambda _: None, 3), (damage, 7)])
def test_a_file_too_large_for_one_answer_continues_in_pieces(
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    num_pieces: int,
) -> None:
    """What is damaged comes anew, once."""
    monkeypatch.setattr(resumed, "PIECE_BYTES", 400_000)
    ranges = continued(hub, tmp_path, WEIGHTS[:615_000], change)
    rest = ["bytes=615000-1014999", "bytes=1015000-1414999", "bytes=1415000-1499999"]
    assert (ranges[:3], len(ranges)) == (rest, num_pieces)


def test_a_token_stays_with_the_hub_and_a_range_reaches_its_store(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(FakeHub(hub.files)) as store:
        hub.store = store
        file = partial(hub, tmp_path)
        file.parent.mkdir(parents=True)
        file.write_bytes(WEIGHTS[:HALF])
        fetched = Fetcher(tmp_path, lambda: 1 << 30).fetch(SPEC, lambda _: None, lambda: False)
        assert fetched is not None and Path(fetched.weights[0]).read_bytes() == WEIGHTS
        assert ("x-Q4_0.gguf", f"bytes={HALF}-") in store.ranges
        assert set(hub.authorizations) == {"Bearer hf_secret"}
        assert set(store.authorizations) == {""}
