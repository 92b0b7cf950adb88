"""NaN stays with the sequence that computed it, wherever keys and values lie: in blocks of earlier
sequences, in slots that no row has written yet, and in the padding of rows of different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import PagedKV
from inference.models.native.build import NativeUnavailableError, load_library
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from tests.inference.engine.asking import Answers, submit
from tests.inference.engine.conftest import CONTEXT_TOKENS, build_reference, our_config
from tests.inference.models.dense_weights import DenseWeights

BLOCK_TOKENS = 32
NUM_BLOCKS = 12
PATHS: list[tuple[str, KVFormat]] = [
    *[("torch", kv_format) for kv_format in ("fp32", "bf16", "int8", "fp8")],
    *[("native", kv_format) for kv_format in ("fp32", "bf16", "int8")],
]
PROMPTS = {f"p{length}": [(7 * i + length) % 128 for i in range(length)] for length in (2, 33, 79)}
"""The prompts of one batch: padding of two blocks, and of one; unwritten slots in each last
block."""


@pytest.fixture(scope="module", params=PATHS, ids=" ".join)
def model(request: pytest.FixtureRequest, native_cache_dir: Path) -> AnyModel:
    path, kv_format = request.param
    reference = build_reference("llama")
    config = our_config(reference)
    weights = DenseWeights(reference.state_dict(), torch.float32, torch.device("cpu"))
    if path == "torch":
        return build_model(config, weights, CONTEXT_TOKENS, kv_format)
    try:
        library = load_library(native_cache_dir)
    except NativeUnavailableError as reason:
        pytest.skip(str(reason))
    return NativeModel(library, config, weights, CONTEXT_TOKENS, kv_format)


class Watched:
    def __init__(self, model: AnyModel) -> None:
        self.engine: Engine = build_engine(
            model,
            context_tokens=CONTEXT_TOKENS,
            num_kv_blocks=NUM_BLOCKS,
            block_tokens=BLOCK_TOKENS,
            scheduler_limits=SchedulerLimits(prefill_tokens_per_step=64),
            check_when_idle=True,
        )
        executor: Any = self.engine.executor
        self.kv: Any = executor.runner.kv
        self.answers = Answers()

    def submit(self, name: str, prompt: list[int], max_tokens: int = 8) -> None:
        submit(self.engine, name, prompt, max_tokens)

    def drain(self) -> None:
        self.answers.drain(self.engine)
        assert self.engine.stats().kv_blocks_used == 0

    def poison(self, block_ids: list[int]) -> None:
        """Writes NaN to the blocks."""
        blocks = torch.tensor(block_ids)
        if not isinstance(self.kv, PagedKV):
            # All ones are no number as float, bfloat16 or float16: as the scales of codes, too.
            self.kv.keys[:, blocks] = 255
            self.kv.values[:, blocks] = 255
            return
        for layer in self.kv.layers:
            tensors = [layer.entries] if layer.scales is None else [layer.scales]
            for tensor in tensors:
                by_block = tensor.view(-1, BLOCK_TOKENS, *tensor.shape[1:])
                by_block[blocks] = float("nan")


@pytest.fixture
def undisturbed(model: AnyModel) -> dict[str, list[int]]:
    watched = Watched(model)
    for name, prompt in PROMPTS.items():
        watched.submit(name, prompt)
    watched.drain()
    assert watched.answers.failed == {}
    return watched.answers.tokens


def test_a_row_that_is_no_number_fails_alone_and_harms_nobody_who_gets_its_blocks(
    model: AnyModel, undisturbed: dict[str, list[int]]
) -> None:
    watched = Watched(model)
    watched.poison(list(range(NUM_BLOCKS + 1)))
    for name, prompt in PROMPTS.items():
        watched.submit(name, prompt)
    watched.drain()
    assert watched.answers.failed == {}
    assert watched.answers.tokens == undisturbed, "what they have not written is nothing to them"

    watched = Watched(model)
    bad = [(3 * i) % 128 for i in range(70)]
    watched.submit("bad", bad, max_tokens=100)
    for name, prompt in PROMPTS.items():
        watched.submit(name, prompt)
    while not watched.answers.tokens.get("bad"):
        watched.answers.step(watched.engine)
    running = {one.sequence_id: one for one in watched.engine.scheduler.running}
    block_ids = list(running["bad"].block_ids)
    assert 0 in block_ids, "the first one, with which rows are filled up"
    watched.poison(block_ids)
    watched.drain()
    assert watched.answers.failed == {"bad": "numerical_error"}
    assert {name: watched.answers.tokens[name] for name in PROMPTS} == undisturbed

    for index in range(3):  # until other sequences have had all of its blocks
        for name, prompt in PROMPTS.items():
            watched.submit(f"{name} later {index}", [*prompt[:-1], index, prompt[-1]])
        watched.drain()
    watched.submit("good", bad)
    watched.drain()
    for name, prompt in PROMPTS.items():
        watched.submit(f"{name} again", prompt)
    watched.drain()
    assert watched.answers.failed == {"bad": "numerical_error"}
    assert {name: watched.answers.tokens[f"{name} again"] for name in PROMPTS} == undisturbed
