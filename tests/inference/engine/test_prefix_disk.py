"""Prefixes on disk: a prompt's beginning is warm after a reload, and a prefix whose file is damaged
is computed."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inference.engine import prefix_disk
from inference.engine.adapters import Adapters
from inference.engine.engine import Engine
from inference.engine.load.build import AdapterLoader
from inference.engine.prefix_files import PrefixFiles, Tensors
from inference.protocol.engine import CancelSequence
from tests.inference.adapter_files import spec_of, write_adapter
from tests.inference.engine.conftest import Pair, run, submit

NUM_BLOCKS = 5
MakeEngine = Callable[..., Engine]


@pytest.fixture(autouse=True)
def _short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_disk, "LEAST_TOKENS", 8)
    monkeypatch.setattr(prefix_disk, "COPIED_PER_STEP", 4)
    monkeypatch.setattr(prefix_disk, "MOST_SENT_BYTES", 10_000)


@pytest.fixture
def make(llama: Pair, tmp_path: Path) -> MakeEngine:
    """Each engine is a new instance over the same directory."""

    def made(fingerprint: str = "one", budget_bytes: int = 1 << 30, num_blocks: int = 64) -> Engine:
        return llama.engine(
            num_blocks * llama.block_tokens,
            adapters=Adapters(AdapterLoader(llama.model, tmp_path)),
            prefix_files=PrefixFiles(tmp_path / "prefixes", budget_bytes),
            prefix_fingerprint=fingerprint,
        )

    return made


def prompt_of(llama: Pair, num_blocks: int = NUM_BLOCKS, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(128), k=num_blocks * llama.block_tokens + 3)


def answer(engine: Engine, prompt: list[int], salt: str = "", **asked: Any) -> tuple[Any, int]:
    """Tokens, and how many of the prompt's blocks' tokens were not computed. The engine then closes
    in order."""
    submit(engine, "one", prompt, 4, cache_salt=salt, **asked)
    answers = run(engine)
    assert answers.failed == {}
    engine.close()
    return answers.tokens["one"], answers.cached["one"]


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "prefixes").glob("*.safetensors"))


def test_a_prompt_is_warm_in_the_next_life(llama: Pair, make: MakeEngine, tmp_path: Path) -> None:
    prompt = prompt_of(llama)
    wanted = llama.greedy(prompt, 4)
    assert answer(make(), prompt) == (wanted, 0)
    assert len(files(tmp_path)) == NUM_BLOCKS
    assert answer(make(), prompt) == (wanted, NUM_BLOCKS * llama.block_tokens)
    longer = prompt[: 3 * llama.block_tokens] + prompt_of(llama, 2, seed=2)
    assert answer(make(num_blocks=NUM_BLOCKS + 1), prompt)[1] == NUM_BLOCKS * llama.block_tokens
    assert answer(make(), longer) == (llama.greedy(longer, 4), 3 * llama.block_tokens)


def test_a_transfer_keeps_every_dtype_and_shape() -> None:
    tensors = [torch.arange(5, dtype=torch.int8), torch.rand(3, 7), torch.rand(2, 1, 3).half()]
    tensors.insert(2, torch.rand(3).to(torch.float8_e4m3fn))
    found = prefix_disk.in_one_transfer(tensors, torch.device("cpu"))
    for sent, tensor in zip(found, tensors, strict=True):
        assert sent.dtype == tensor.dtype and torch.equal(sent.float(), tensor.float())


def test_nobody_elses_blocks_are_read(llama: Pair, make: MakeEngine, tmp_path: Path) -> None:
    prompt = prompt_of(llama)
    base = {name: weight.detach() for name, weight in llama.reference.state_dict().items()}
    write_adapter(tmp_path / "sql", base, seed=1)
    sql = spec_of(tmp_path / "sql")
    size = NUM_BLOCKS * llama.block_tokens
    assert answer(make(), prompt, salt="alice")[1] == 0
    assert answer(make(), prompt, salt="bob")[1] == 0
    assert answer(make(), prompt)[1] == 0
    assert answer(make("other weights"), prompt, salt="alice")[1] == 0
    adapted = answer(make(), prompt, salt="alice", adapter=sql)
    assert adapted[1] == 0
    assert answer(make(), prompt, salt="alice") == (llama.greedy(prompt, 4), size)
    assert answer(make(), prompt, salt="alice", adapter=sql) == (adapted[0], size)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "unlink"])
def test_what_is_damaged_is_dropped_and_computed(
    llama: Pair, make: MakeEngine, tmp_path: Path, damage: str
) -> None:
    prompt = prompt_of(llama)
    wanted = llama.greedy(prompt, 4)
    answer(make(), prompt)
    before, engine = files(tmp_path), make()
    contents = [path.read_bytes() for path in before]
    for path, data, other in zip(before, contents, contents[1:] + contents[:1], strict=True):
        match damage:
            case "flip":
                path.write_bytes(data[:-7] + bytes([data[-7] ^ 1]) + data[-6:])
            case "unlink":
                path.unlink()
            case _:
                path.write_bytes({"cut": data[:-9], "empty": b"", "swap": other}[damage])
    assert answer(engine, prompt) == (wanted, 0)
    assert answer(make(), prompt)[0] == wanted
    assert files(tmp_path) == before, "they are written again"


def remount_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk does after an error: files can be read, and nothing written or deleted."""
    refuse = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    for name in ("write_bytes", "rename", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(os, "utime", refuse)


@pytest.mark.parametrize("when", ["while it writes", "while it reads", "from the start"])
def test_a_disk_that_becomes_read_only_is_switched_off_and_answers_continue(
    llama: Pair, make: MakeEngine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    first, second = prompt_of(llama, seed=1), prompt_of(llama, seed=2)
    if when == "while it reads":
        answer(make(), first)
    if when == "from the start":
        remount_read_only(monkeypatch)
    engine = make()
    if when != "from the start":
        assert engine.stats().warnings == []
        remount_read_only(monkeypatch)
    assert answer(engine, first)[0] == llama.greedy(first, 4)
    (warning,) = engine.stats().warnings
    assert "Read-only file system" in warning
    assert answer(engine, second) == (llama.greedy(second, 4), 0)
    assert not engine.has_work


def test_the_budget_holds_and_the_oldest_go(llama: Pair, make: MakeEngine, tmp_path: Path) -> None:
    def num_bytes() -> int:
        return sum(path.stat().st_size for path in files(tmp_path))

    first, second = prompt_of(llama, seed=1), prompt_of(llama, seed=2)
    answer(make(), first)
    of_first, budget = set(files(tmp_path)), num_bytes() * 2 - 1
    answer(make(budget_bytes=budget), second)
    assert num_bytes() <= budget
    assert len(of_first - set(files(tmp_path))) == 1
    assert answer(make(budget_bytes=budget), second)[1] == NUM_BLOCKS * llama.block_tokens
    make(budget_bytes=0)
    assert files(tmp_path) == []


def test_one_that_is_cancelled_while_it_is_read(
    llama: Pair, make: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(llama)
    answer(make(), prompt)
    engine, may_read = make(), threading.Event()
    read = PrefixFiles.read

    def slow_read(files: PrefixFiles, names: Sequence[str]) -> list[Tensors]:
        assert may_read.wait(60)
        return read(files, names)

    monkeypatch.setattr(PrefixFiles, "read", slow_read)
    submit(engine, "gone", prompt)
    engine.step()
    assert engine.stats().queue_depth == 1, "it is held"
    engine.cancel(CancelSequence(sequence_id="gone"))
    engine.take_outputs()
    may_read.set()
    assert answer(engine, prompt)[0] == llama.greedy(prompt, 4)
