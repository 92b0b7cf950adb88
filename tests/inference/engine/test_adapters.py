"""Adapters in the engine: the tokens are those of the weights with the adapter merged in, whatever
else runs beside it."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.adapters import Adapters, LoadedAdapter
from inference.engine.engine import Engine
from inference.engine.errors import AdapterError
from inference.engine.load.build import AdapterLoader
from inference.protocol.engine import CancelSequence, SequenceStep
from inference.protocol.load import AdapterSpec
from tests.cases import each_case
from tests.inference.adapter_files import LLAMA_TARGETS, spec_of, write_adapter
from tests.inference.engine import conftest
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.greedy import check_greedy
from tests.inference.models.families import tiny_hybrid as tiny

KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "attention": {"rank": 20, "targets": ("q_proj", "v_proj"), "use_rslora": True},
    "mlp": {"rank": 3, "targets": ("down_proj", "up_proj"), "rank_pattern": {"up_proj": 17}},
    "narrow": {"dtype": torch.bfloat16, "alpha": 7},
    "output": {"targets": ("o_proj",), "alpha_pattern": {"o_proj": 3.0}},
}


@dataclass
class Adapted:
    """A model, some adapters of it, and what transformers answers with each merged in."""

    pair: conftest.Pair
    specs: dict[str, AdapterSpec]
    merged: dict[str | None, Any]
    """``None``: the model itself."""

    def engine(
        self, num_kv_blocks: int = 128, *, slots: int = 8, source: Any = None, **how: Any
    ) -> Engine:
        loader = source or AdapterLoader(self.pair.model, Path("/nowhere"))
        num_tokens = num_kv_blocks * self.pair.block_tokens
        return self.pair.engine(num_tokens, adapters=Adapters(loader, slots), **how)

    def submit(
        self, engine: Engine, name: str, prompt: list[int], num_tokens: int, adapter: str | None
    ) -> None:
        conftest.submit(engine, name, prompt, num_tokens, adapter=self.specs.get(adapter or ""))

    def greedy(self, adapter: str | None, prompt: list[int], num_tokens: int) -> list[int]:
        return list(conftest.greedy(self.merged[adapter], tuple(prompt), num_tokens))


@pytest.fixture(scope="module", params=[pytest.param("torch", marks=pytest.mark.slow), "native"])
def adapted(
    request: pytest.FixtureRequest,
    native_cache_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Adapted:
    pair = conftest.build_pair("qwen2", request.param, native_cache_dir)
    specs: dict[str, AdapterSpec] = {}
    merged: dict[str | None, Any] = {None: pair.reference}
    base = {name: weight.detach() for name, weight in pair.reference.state_dict().items()}
    for seed, (name, config) in enumerate(KINDS.items()):
        directory = tmp_path_factory.mktemp("adapters") / name
        weights = write_adapter(directory, base, seed=seed, **config)
        merged[name] = copy.deepcopy(pair.reference)
        merged[name].load_state_dict(weights)
        specs[name] = spec_of(directory)
    return Adapted(pair, specs, merged)


@each_case("prefill_tokens", [19, 512])
def test_each_adapter_among_the_others_gives_what_merged_weights_give(
    adapted: Adapted, prefill_tokens: int
) -> None:
    """Prompts of 150 tokens go through the layers in blocks, where a step may have so many."""
    engine = adapted.engine(prefill_tokens=prefill_tokens)
    wanted = {}
    for seed in range(2):
        for name in (*KINDS, None):
            prompt = conftest.prompt_of(11 + 139 * seed, seed)
            adapted.submit(engine, f"{name}{seed}", prompt, 8, name)
            wanted[f"{name}{seed}"] = adapted.greedy(name, prompt, 8)
    assert len({tuple(answer) for answer in wanted.values()}) == len(wanted), "adapters do nothing"
    assert conftest.tokens_of(engine) == wanted
    assert engine.stats().adapters == [*KINDS]


def test_drafted_and_preempted_sequences_keep_their_adapters(adapted: Adapted) -> None:
    prompts = {name: conftest.prompt_of(20, seed) for seed, name in enumerate(adapted.merged)}
    wanted = {str(name): adapted.greedy(name, prompt, 16) for name, prompt in prompts.items()}
    scripted = adapted.engine(speculator=ScriptedSpeculator(wanted))
    for engine in (scripted, adapted.engine(draft_model=adapted.pair.model)):
        for name, prompt in prompts.items():
            adapted.submit(engine, str(name), prompt, 16, name)
        assert conftest.tokens_of(engine) == wanted
    assert scripted.stats().num_accepted_drafts > 20
    tight = adapted.engine(128 // adapted.pair.block_tokens)
    for num_tokens in (1, 40):  # only adapters that are loaded already begin together
        for name in KINDS:
            adapted.submit(tight, name, prompts[name], num_tokens, name)
        answers = conftest.tokens_of(tight)
    assert tight.stats().num_preemptions > 0
    assert answers == {name: adapted.greedy(name, prompts[name], 40) for name in KINDS}


def test_blocks_are_shared_within_an_adapter_and_never_beyond(adapted: Adapted) -> None:
    size = adapted.pair.block_tokens
    engine, prompt = adapted.engine(), conftest.prompt_of(3 * size, seed=3)
    found = []
    for name in ("all", None, "output", "all", None):
        adapted.submit(engine, "one", prompt, 6, name)
        answers = conftest.run(engine)
        assert answers.tokens["one"] == adapted.greedy(name, prompt, 6), name
        found.append(answers.cached["one"])
    assert found == [0, 0, 0, 2 * size, 2 * size]

    engine = adapted.engine(slots=2)  # which adapters take in turn
    for name in KINDS:
        adapted.submit(engine, name, prompt[:9], 10, name)
    assert conftest.tokens_of(engine) == {
        name: adapted.greedy(name, prompt[:9], 10) for name in KINDS
    }
    assert engine.stats().adapters == ["narrow", "output"]


def test_sequences_wait_for_their_adapter_and_it_leaves_once_nobody_has_it(
    adapted: Adapted,
) -> None:
    """They come once the test ends their loads."""
    loads: dict[str, Future[LoadedAdapter]] = defaultdict(Future)
    engine = adapted.engine(source=SimpleNamespace(load=lambda spec: loads[spec.name]))
    for name, adapter in (("held", "all"), ("cancelled", "all"), ("refused", "mlp"), ("base", "")):
        adapted.submit(engine, name, conftest.prompt_of(4, 1), 3, adapter)
    engine.cancel(CancelSequence(sequence_id="cancelled"))
    ended = [o for _ in range(6) for o in engine.step().outputs if isinstance(o, SequenceStep)]
    assert {output.sequence_id for output in ended} == {"base"}
    loads["mlp"].set_exception(AdapterError("it has use_dora"))
    (failed,) = engine.step().outputs
    assert (failed.sequence_id, failed.code) == ("refused", "model_load_failed")
    assert failed.message == "the adapter mlp cannot be loaded: it has use_dora"
    real = AdapterLoader(adapted.pair.model, Path("/nowhere")).load(adapted.specs["all"])
    loads["all"].set_result(real.result())
    assert conftest.tokens_of(engine) == {
        "held": adapted.greedy("all", conftest.prompt_of(4, 1), 3)
    }

    engine = adapted.engine(slots=0)
    adapted.submit(engine, "one", conftest.prompt_of(4, 1), 3, "all")
    (failed,) = engine.step().outputs
    assert failed.message == "this replica takes no adapters"

    # One that is dropped leaves once nobody has it.
    engine, prompt = adapted.engine(), conftest.prompt_of(6, 2)
    adapted.submit(engine, "one", prompt, 8, "all")
    while not engine.stats().in_flight:
        engine.step()
    engine.drop_adapter("all")
    adapted.submit(engine, "two", prompt, 8, "all")
    wanted = adapted.greedy("all", prompt, 8)
    answers = conftest.tokens_of(engine)
    assert answers["two"] == wanted
    assert wanted[-len(answers["one"]) :] == answers["one"]
    engine.drop_adapter("all")
    assert engine.stats().adapters == []


LINEAR_TARGETS = {
    "qwen3_5": (*LLAMA_TARGETS, "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    "qwen3_next": ("q_proj", "v_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"),
}


@each_case("made", [tiny.qwen3_5, tiny.qwen3_next])
@each_case("is_native", [False, True])
def test_an_adapter_of_all_linear_layers(
    made: Callable[[], PreTrainedModel], is_native: bool, tmp_path: Path, native_cache_dir: Path
) -> None:
    """In one batch with the model alone, in chunks."""
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
    assert {t for t in targets if any(f".{t}." in name for name in changed)} == {*targets}
    expected = copy.deepcopy(reference)
    expected.load_state_dict(merged, strict=False)
    if is_native:
        own = conftest.OwnModel(
            tiny.natively(conftest.library(native_cache_dir), directory, tmp_path), 32
        )
    else:
        own = conftest.OwnModel(tiny.on_torch(directory, tmp_path), 8)
    loader = AdapterLoader(own.model, Path("/nowhere"))
    engine = own.engine(512, prefill_tokens=19, adapters=Adapters(loader, 2))
    for name in ("with", "without"):
        adapter = spec_of(tmp_path / "adapter") if name == "with" else None
        conftest.submit(
            engine, name, random.Random(name).choices(range(100), k=40), 16, adapter=adapter
        )
    answers = conftest.tokens_of(engine)
    for name, wanted in (("with", expected), ("without", reference)):
        assert len(answers[name]) == 16
        check_greedy(wanted, random.Random(name).choices(range(100), k=40), answers[name])
