"""Tiny random models of each family, as transformers builds them and as our engine runs them; what
an engine is asked in the test's process, and what it answers."""

from __future__ import annotations

import ctypes
import functools
import json
import random
import shutil
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.grammars import GrammarCompiler
from inference.engine.load.build import build_engine
from inference.engine.sequence import Sequence
from inference.engine.speculation import draft_model, prompt_lookup
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.hub_config import parse_config
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat
from inference.models.native.library import NativeUnavailableError, load_library
from inference.models.native.model import NativeModel
from inference.models.paged_kv import PagedKV
from inference.models.registry import build_model
from inference.protocol.engine import SamplingParams, SequenceStep, SubmitSequence, TokenLogprob
from inference.protocol.load import LoadSpec
from tests.inference import greedy as references
from tests.inference.collected import _what_was_imported_is_not_collected  # noqa: F401 - a fixture
from tests.inference.models.dense_weights import DenseWeights
from tests.interpreted_triton import patch_once_a_launch

VOCAB_SIZE = 128
CONTEXT_TOKENS = 256
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = ROPE | {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {"rope_parameters": ROPE}),
    "llama-tied-biased": (
        "llama",
        {"rope_parameters": ROPE, "tie_word_embeddings": True}
        | {"attention_bias": True, "mlp_bias": True},
    ),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"rope_parameters": ROPE, "sliding_window": 24}),
    "qwen2": ("qwen2", {"rope_parameters": ROPE}),
}


@dataclass(eq=False)
class OwnModel:
    """A model of ours. ``block_tokens``: the size of blocks that it wants."""

    model: AnyModel
    block_tokens: int

    def engine(
        self,
        num_tokens: int = 2048,
        *,
        limits: SchedulerLimits | None = None,
        prefill_tokens: int = 512,
        **options: Any,
    ) -> Engine:
        """``num_tokens``: the size of its KV cache."""
        return build_engine(
            self.model,
            context_tokens=min(CONTEXT_TOKENS, num_tokens),
            num_kv_blocks=num_tokens // self.block_tokens,
            block_tokens=self.block_tokens,
            scheduler_limits=limits or SchedulerLimits(prefill_tokens_per_step=prefill_tokens),
            check_when_idle=True,
            **options,
        )


@dataclass(eq=False)
class Pair(OwnModel):
    """The same weights twice."""

    reference: PreTrainedModel

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The answer of transformers, token by token."""
        return list(greedy(self.reference, tuple(prompt), num_tokens))

    def check_greedy(self, prompt: list[int], answer: list[int], num_tokens: int) -> None:
        assert len(answer) == num_tokens
        references.check_greedy(self.reference, prompt, answer)


@functools.cache
def greedy(reference: PreTrainedModel, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """Once for both paths of ours."""
    return tuple(references.greedy(reference, list(prompt), num_tokens))


def our_config(reference: PreTrainedModel) -> ModelConfig:
    return parse_config(json.loads(reference.config.to_json_string()), {})


@functools.cache
def build_reference(name: str) -> PreTrainedModel:
    """Builds the reference model. It must not be changed: it is shared."""
    model_type, overrides = FAMILIES[name]
    torch.manual_seed(7)
    neutral = {"tie_word_embeddings": False, "eos_token_id": None, "pad_token_id": 0}
    hf_config = AutoConfig.for_model(model_type, **(neutral | SIZES | overrides))
    reference = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32).eval()
    for parameter_name, parameter in reference.named_parameters():
        if "norm" in parameter_name or parameter_name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return reference


def library(cache_dir: Path) -> ctypes.CDLL:
    """Skips the test where there is no compiler."""
    try:
        return load_library(cache_dir)
    except NativeUnavailableError as reason:
        pytest.skip(str(reason))


def build_pair(name: str, path: str, cache_dir: Path, kv_format: KVFormat = "fp32") -> Pair:
    reference = build_reference(name)
    config = our_config(reference)
    weights = DenseWeights(reference.state_dict(), torch.float32, torch.device("cpu"))
    if path == "torch":
        return Pair(build_model(config, weights, CONTEXT_TOKENS, kv_format), 8, reference)
    model = NativeModel(library(cache_dir), config, weights, CONTEXT_TOKENS, kv_format)
    return Pair(model, 32, reference)


@pytest.fixture
def drafts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else how many there are would follow from this machine's times."""

    def longest(_num_rows: int, candidates: Any, _costs: Any) -> tuple[int, float]:
        return max((length for length, _ in candidates), default=0), 2.0

    for module in (draft_model, prompt_lookup):
        monkeypatch.setattr(module, "best_length", longest)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more, and lose much where cores are shared."""
    patch_once_a_launch()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("data")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory


data_dir = pytest.fixture(make_data_dir, scope="session")
"""One for all engines of this directory."""


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory, ascii_tokenizer_file: Path) -> Path:
    """A tiny llama as files: config.json, model.safetensors, tokenizer.json."""
    directory = tmp_path_factory.mktemp("tiny-llama")
    build_reference("llama").save_pretrained(directory)
    shutil.copy(ascii_tokenizer_file, directory / "tokenizer.json")
    return directory


@pytest.fixture(scope="session", params=[pytest.param("torch", marks=pytest.mark.slow), "native"])
def llama(request: pytest.FixtureRequest, native_cache_dir: Path) -> Pair:
    return build_pair("llama", request.param, native_cache_dir)


END_ID, THINK_ID, END_THINK_ID = 96, 97, 98


@pytest.fixture(scope="session")
def ascii_tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with one token for each printable character (its code less 32), one for the
    newline (95), the special ones above and another end (99)."""
    vocabulary = {"\u0120" if code == 32 else chr(code): code - 32 for code in range(32, 127)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary | {"\u010a": 95}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True) for word in ("<|end|>", "<think>", "</think>", "<|eot|>")]
    )
    file = tmp_path_factory.mktemp("ascii") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture(scope="session")
def compiler(ascii_tokenizer_file: Path) -> GrammarCompiler:
    return GrammarCompiler(ascii_tokenizer_file, VOCAB_SIZE, (END_ID,))


FIELDS = {*SubmitSequence.__struct_fields__}
SEQUENCE_FIELDS = {
    *("context_tokens", "arrival", "deadline_s", "same_prompt_as", "account", "weight"),
    *("is_anonymous", "cache_salt", "images", "prediction"),
}
ARRIVALS = count(1)


def submit(
    engine: Engine, name: str, prompt: Ordered[int], max_tokens: int = 12, **asked: Any
) -> None:
    """``asked``: fields of the command, and parameters; greedy without a temperature."""
    fields = {key: asked.pop(key) for key in [*asked] if key in FIELDS}
    params = SamplingParams(**({"max_tokens": max_tokens, "temperature": 0.0} | asked))
    engine.submit(SubmitSequence(sequence_id=name, token_ids=[*prompt], params=params, **fields))


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


class Answers:
    """By sequence id. ``ends`` are the outputs that ended them, ``failed`` their codes."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.scored: dict[str, list[TokenLogprob]] = {}
        self.cached: dict[str, int] = {}
        self.ends: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def add(self, outputs: Iterable[Any]) -> None:
        for output in outputs:
            name = output.sequence_id
            assert name not in self.ends, "a sequence ends once"
            if not isinstance(output, SequenceStep):
                self.ends[name] = output
                self.failed[name] = getattr(output, "code", "cancelled")
                continue
            if output.token_ids or output.prompt_logprobs is None:
                self.tokens.setdefault(name, []).extend(output.token_ids)
            self.logprobs.setdefault(name, []).extend(output.logprobs or [])
            if output.prompt_logprobs is not None:
                assert name not in self.tokens, "a prompt's come first"
                self.scored.setdefault(name, []).extend(output.prompt_logprobs)
            if output.num_cached_tokens is not None:
                self.cached[name] = output.num_cached_tokens
            if output.finish_reason is not None:
                self.ends[name] = output

    def step(self, engine: Engine) -> None:
        self.add(engine.step().outputs)

    def drain(self, engine: Engine) -> Answers:
        while engine.has_work:
            self.step(engine)
        return self


def run(engine: Engine) -> Answers:
    """Runs it until nothing is left."""
    return Answers().drain(engine)


def tokens_of(engine: Engine) -> dict[str, list[int]]:
    """Runs it until nothing is left; no sequence may fail."""
    answers = run(engine)
    assert answers.failed == {}
    return answers.tokens


def sequence_of(
    prompt: Ordered[int], output: Ordered[int] = (), *, name: str = "", **asked: Any
) -> Sequence:
    """``asked``: the sequence's own fields, and parameters."""
    known = {"context_tokens": 10_000, "arrival": next(ARRIVALS), "deadline_s": 0.0}
    fields = known | {key: asked.pop(key) for key in [*asked] if key in SEQUENCE_FIELDS}
    params = SamplingParams(**({"max_tokens": 100} | asked))
    sequence = Sequence(name or f"s{fields['arrival']}", list(prompt), params, **fields)
    sequence.token_ids += output
    return sequence


def cpu_spec(path: Path | str, **settings: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=f"path:{path}", devices=["cpu"], **settings)


def answer_of(loaded: Any, prompt: list[int], max_tokens: int, **settings: Any) -> list[int]:
    """The tokens after ``prompt``, greedily."""
    submit(loaded.engine, "a", prompt, max_tokens, **settings)
    return tokens_of(loaded.engine)["a"]


def poison(kv: Any, block_ids: Iterable[int], block_tokens: int) -> None:
    """Writes NaN to the blocks."""
    blocks = torch.tensor([*block_ids])
    if not isinstance(kv, PagedKV):
        # All ones are no number as float, bfloat16 or float16: as the scales of codes, too.
        kv.keys[:, blocks] = 255
        kv.values[:, blocks] = 255
        return
    for layer in kv.layers:
        tensor: Any = layer.entries if layer.scales is None else layer.scales
        by_block = tensor[: len(tensor) // block_tokens * block_tokens]
        by_block.view(-1, block_tokens, *tensor.shape[1:])[blocks] = float("nan")
