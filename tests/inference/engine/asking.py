"""Loads an engine or asks one in the test's process, and collects what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from itertools import count
from pathlib import Path
from typing import Any

import torch

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.engine.sequence import Sequence
from inference.models.paged_kv import PagedKV
from inference.protocol.engine import SamplingParams, SequenceStep, SubmitSequence, TokenLogprob
from inference.protocol.load import LoadSpec

FIELDS = {*SubmitSequence.__struct_fields__}
ARRIVALS = count(1)


def submit(
    engine: Engine, name: str, prompt: Ordered[int], max_tokens: int = 12, **asked: Any
) -> None:
    """``asked``: fields of the command, and parameters; greedy without a temperature."""
    fields = {key: asked.pop(key) for key in [*asked] if key in FIELDS}
    params = SamplingParams(**({"max_tokens": max_tokens, "temperature": 0.0} | asked))
    engine.submit(SubmitSequence(sequence_id=name, token_ids=[*prompt], params=params, **fields))


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


SEQUENCE_FIELDS = {
    *("context_tokens", "arrival", "deadline_s", "same_prompt_as", "account", "weight"),
    *("is_anonymous", "cache_salt", "images", "prediction"),
}


def cpu_spec(path: Path | str, **settings: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=f"path:{path}", devices=["cpu"], **settings)


def answer_of(
    loaded: LoadedEngine, prompt: list[int], max_tokens: int, **settings: Any
) -> list[int]:
    """The tokens after ``prompt``, greedily."""
    assert isinstance(loaded.engine, Engine)
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
