"""Adapters of all linear layers of hybrids, whose decays and betas are projections too: the tokens
are those of the weights with the adapter merged in."""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.adapters import Adapters
from inference.engine.load.build import AdapterLoader, build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.native.build import NativeUnavailableError, load_library
from tests.inference import greedy
from tests.inference.adapter_files import LLAMA_TARGETS, spec_of, write_adapter
from tests.inference.engine.asking import submit, tokens_of
from tests.inference.models.families import tiny_hybrid as tiny

LINEAR_TARGETS = {
    "qwen3_5": (*LLAMA_TARGETS, "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    "qwen3_next": ("q_proj", "v_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"),
}
NUM_TOKENS = 16


@pytest.fixture(scope="module", params=["torch", "native"])
def path(request: pytest.FixtureRequest, native_cache_dir: Path) -> ctypes.CDLL | None:
    """The native decoder's library, or ``None`` for torch's operators."""
    if request.param == "torch":
        return None
    try:
        return load_library(native_cache_dir)
    except NativeUnavailableError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("made", [tiny.qwen3_5, tiny.qwen3_next], ids=lambda made: made.__name__)
def test_an_adapter_of_all_linear_layers(
    made: Callable[[], PreTrainedModel], path: ctypes.CDLL | None, tmp_path: Path
) -> None:
    reference, directory = made(), tmp_path / "base"
    tiny.save(reference, directory)
    base = {
        name: weight.detach()
        for name, weight in reference.state_dict().items()
        if "visual" not in name and ".shared_expert." not in name
    }
    targets = LINEAR_TARGETS[made.__name__]
    merged = write_adapter(tmp_path / "adapter", base, seed=1, targets=targets, size=0.15)
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert {target for target in targets if any(f".{target}." in name for name in changed)} == {
        *targets
    }
    expected = copy.deepcopy(reference)
    expected.load_state_dict(merged, strict=False)

    model = (
        tiny.on_torch(directory, tmp_path)
        if path is None
        else tiny.natively(path, directory, tmp_path)
    )
    prompts = {name: random.Random(name).choices(range(100), k=40) for name in ("with", "without")}
    answers = answers_of(model, prompts, tmp_path / "adapter")
    greedy.check_greedy(expected, prompts["with"], answers["with"])
    greedy.check_greedy(reference, prompts["without"], answers["without"])


def answers_of(
    model: AnyModel, prompts: dict[str, list[int]], adapter: Path
) -> dict[str, list[int]]:
    """Returns the answers of both in one batch, in chunks, one of them with the adapter."""
    block_tokens: Any = getattr(getattr(model, "decoder", None), "block_tokens", 8)
    engine = build_engine(
        model,
        context_tokens=tiny.CONTEXT_TOKENS,
        num_kv_blocks=2 * tiny.CONTEXT_TOKENS // block_tokens,
        block_tokens=block_tokens,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=19),
        adapters=Adapters(AdapterLoader(model, Path("/nowhere")), 2),
        check_when_idle=True,
    )
    for name, prompt in prompts.items():
        own = spec_of(adapter) if name == "with" else None
        submit(engine, name, prompt, NUM_TOKENS, adapter=own)
    answers = tokens_of(engine)
    assert all(len(answer) == NUM_TOKENS for answer in answers.values())
    return answers
