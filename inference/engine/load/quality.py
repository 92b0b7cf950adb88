"""The loss by quantising while loading: the finished model against the same files' dense weights.

Dense weights are read layer by layer, and only their log-probabilities are kept. A figure is kept
on disk, by files, weights and kernels.

    text ─▶ dense, layer by layer ─▶ log-probabilities, float16 ─┐
        └─▶ the model as it will serve ──────────────────────────┴─▶ KL divergence, perplexities
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer

from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.trial import report_step
from inference.loading.devices import free_memory_bytes
from inference.loading.loader import OpenedModel
from inference.loading.progress import OnProgress
from inference.loading.weights.opened_weights import Unquantized
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.layer_by_layer import largest_layer_bytes, prompt_logits
from inference.models.step_input import NUM_LONE_STATES, StepInput

QUALITY_TEXT = """\
The harbour lies where the river meets the sea, and for most of the year the water is the colour of
wet slate. Ships used to wait here for a favourable wind; today they wait for a berth, for a customs
officer, or for somebody to repair a crane. On a clear morning you can count eleven islands from the
lighthouse. The smallest has a single house on it, with a red roof and no electricity, and the woman
who lives there rows to the market every Thursday to sell eggs, honey and wool.

"How long have you been out there?" asked the clerk, who was new to the town.
"Since the winter my father died," she said. "That makes it nineteen years."
"And you never wanted to leave?"
"I left twice. Both times I came back before the bread was stale."

To make the plain bread of the region you need four things: flour, water, salt and time.
1. Mix 500 grams of flour with 350 grams of water and let it rest for thirty minutes.
2. Add 10 grams of salt and a spoonful of the old dough, and knead until it no longer sticks.
3. Wait. In summer three hours are enough; in winter it may take the whole night.
4. Bake at 240 degrees for forty minutes, and do not cut it while it is hot.

The tide can be predicted, because the moon moves regularly around the earth. If high water is at
06:10 today, it will be at about 07:00 tomorrow, since the moon is then fifty minutes behind. A
simple program says as much:

def next_high_water(minutes):
    # The moon comes round again after 24 hours and 50 minutes.
    return (minutes + 24 * 60 + 50) % (24 * 60)

In 1874 the town had 3,200 inhabitants, in 1931 it had 9,750, and at the last count 6,418. Nobody is
quite sure why people left, although most explanations begin with the railway and end with the fish.
"""
"""Prose, a dialogue, a list, numbers and code, so that no one kind of text decides. Changing a
letter changes every figure: all models are measured again."""

log = logging.getLogger(__name__)

MAX_TOKENS = 257
"""Each token but the last is followed by one that was to be predicted."""
FEWEST_TOKENS = 16
COPIES_OF_A_LAYER = 2
"""A layer is held as its file has it, and as it is multiplied."""
COPIES_OF_LOGITS = 3
KL_ROWS = 32
"""Compared at a time, to hold few float32 rows of the vocabulary."""


class QualityFigure(msgspec.Struct, frozen=True, kw_only=True):
    num_tokens: int
    kl_nats: float
    """Mean over the tokens, of the dense distribution from the quantised one."""
    dense_perplexity: float
    quantized_perplexity: float


class NotMeasurableError(Exception):
    """Why there is no figure; the model works all the same."""


def quality_in_words(
    opened: OpenedModel,
    model: AnyModel,
    execution: str,
    *,
    context_tokens: int,
    cache_dir: Path,
    on_progress: OnProgress,
) -> str:
    """Empty for a model whose weights are as its files hold them. ``execution``: in words, what
    runs the model; other kernels have another figure. Without an earlier figure it blocks for one
    pass over the dense weights. Raises ``LoadError``."""
    dense = opened.unquantized
    if dense is None:
        return ""
    weights = opened.weights.report()
    ran_as = (execution, str(model.dtype), model.kv_format)
    path = cache_dir / f"{_key(dense.fingerprint, weights, *ran_as)}.json"
    figure = _read(path)
    if figure is None:
        try:
            figure = _measure(opened, dense, model, context_tokens, on_progress)
        except NotMeasurableError as error:
            return f"not measured: {error}"
        _write(path, figure)
    return (
        f"KL {figure.kl_nats:.4f} nats a token against {dense.format}, perplexity "
        f"{figure.dense_perplexity:.2f} to {figure.quantized_perplexity:.2f}, "
        f"on {figure.num_tokens} tokens"
    )


def _measure(
    opened: OpenedModel,
    dense: Unquantized,
    model: AnyModel,
    context_tokens: int,
    on_progress: OnProgress,
) -> QualityFigure:
    config = opened.config
    token_ids = _token_ids(opened.tokenizer_dir, config, min(MAX_TOKENS, context_tokens))
    _check_memory(config, dense, len(token_ids))

    def layer_done(done: int) -> None:
        report_step(on_progress, done, config.num_layers, "measuring what quantising cost")

    layer_done(0)
    try:
        logits = prompt_logits(config, dense.weights, _prompt(token_ids, 1), layer_done)
        reference = logits.log_softmax(dim=-1).half()
        del logits
        ours = model_logits(model, token_ids)
    except torch.OutOfMemoryError:
        raise NotMeasurableError(f"{model.device} has no room for it") from None
    return compare(reference, ours, torch.tensor(token_ids[1:], device=ours.device))


def compare(reference: torch.Tensor, logits: torch.Tensor, next_ids: torch.Tensor) -> QualityFigure:
    """``reference`` log-probabilities and ``logits``, both (num_tokens, vocab_size) of any float
    dtype; ``next_ids`` (num_tokens,): the tokens that came. Raises ``NotMeasurableError``."""
    kl_nats, dense_nats, quantized_nats = 0.0, 0.0, 0.0
    for first in range(0, len(next_ids), KL_ROWS):
        rows = slice(first, first + KL_ROWS)
        # Renormalizes: rounding to float16 changed the sum of the probabilities.
        expected = reference[rows].float().log_softmax(dim=-1)
        actual = logits[rows].float().log_softmax(dim=-1)
        came = next_ids[rows].unsqueeze(1)
        kl_nats += float((expected.exp() * (expected - actual)).sum())
        dense_nats -= float(expected.gather(1, came).sum())
        quantized_nats -= float(actual.gather(1, came).sum())
    num_tokens = len(next_ids)
    if not math.isfinite(kl_nats + dense_nats + quantized_nats):
        raise NotMeasurableError("the logits are not finite")
    return QualityFigure(
        num_tokens=num_tokens,
        kl_nats=max(0.0, kl_nats / num_tokens),
        dense_perplexity=math.exp(dense_nats / num_tokens),
        quantized_perplexity=math.exp(quantized_nats / num_tokens),
    )


def _token_ids(tokenizer_dir: Path, config: ModelConfig, max_tokens: int) -> list[int]:
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    token_ids: list[int] = tokenizer.encode(QUALITY_TEXT).ids[:max_tokens]
    if len(token_ids) < FEWEST_TOKENS:
        raise NotMeasurableError(f"the fixed text is {len(token_ids)} tokens to this model")
    if max(token_ids) >= config.vocab_size:
        raise NotMeasurableError("the tokenizer has tokens that the model has not")
    return token_ids


def _check_memory(config: ModelConfig, dense: Unquantized, num_tokens: int) -> None:
    weights = dense.weights
    layer_bytes = largest_layer_bytes(config, weights.activation_dtype.itemsize)
    logit_bytes = num_tokens * config.vocab_size * torch.float32.itemsize
    need_bytes = COPIES_OF_A_LAYER * layer_bytes + COPIES_OF_LOGITS * logit_bytes
    free_bytes = free_memory_bytes(weights.device)
    if need_bytes > free_bytes:
        raise NotMeasurableError(
            f"a dense layer beside the model needs {need_bytes / 1e9:.2f} GB on {weights.device}, "
            f"and {free_bytes / 1e9:.2f} GB are free"
        )


@torch.inference_mode()
def model_logits(model: AnyModel, token_ids: list[int]) -> torch.Tensor:
    num_blocks = -(-len(token_ids) // DEFAULT_BLOCK_TOKENS)
    kv = model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)
    return model.forward(_prompt(token_ids, DEFAULT_BLOCK_TOKENS), kv)


def _prompt(token_ids: list[int], block_tokens: int) -> StepInput:
    return StepInput.of_sequence(token_ids, block_tokens, logit_rows=slice(None, -1))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((*parts, QUALITY_TEXT)).encode()).hexdigest()


def _read(path: Path) -> QualityFigure | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=QualityFigure)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(
            "the quality figure in %s is not understood and is measured anew: %s", path, error
        )
        return None


def _write(path: Path, figure: QualityFigure) -> None:
    """All of it or nothing, so that a load that dies leaves no half a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(msgspec.json.encode(figure))
    part.replace(path)
