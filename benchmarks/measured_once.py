"""The rows that are measured once: the error of packed weights and of 8-bit keys and values, and
the engine's own Python in a decode step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from helexa_site.program import REPOSITORY_DIR
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.kv_cache import KVCache
from inference.engine.load.quality import QUALITY_TEXT
from inference.engine.scheduler import EngineLimits, Scheduler
from inference.engine.sequence import Sequence as EngineSequence
from inference.engine.step import Sampled, Schedule
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.layer_by_layer import prompt_logits
from inference.models.layers.linear import LinearFactory
from inference.models.step_input import ALL_ROWS, StepInput
from inference.protocol.engine import SamplingParams, SubmitSequence
from inference.protocol.load import LoadSpec

MAX_TOKENS = 192
LANGUAGES = """Der Fluss, der durch die Stadt fließt, war im Winter zugefroren, und die
Kinder liefen auf ihm bis zur Mühle. La boulangère ouvrait sa porte avant l'aube et saluait
chacun par son nom. El tren salió con media hora de retraso, pero nadie en el andén parecía
tener prisa. 春になると、川沿いの桜が一斉に咲き、遠くから人々が訪れる。 Когда дождь
кончился, во дворе остались лужи, в которых отражалось небо. 图书馆在周末也开放。"""


def texts() -> dict[str, str]:
    return {
        "prose": QUALITY_TEXT,
        "page": (REPOSITORY_DIR / "docs" / "operating" / "models.md").read_text(encoding="utf-8"),
        "code": (REPOSITORY_DIR / "inference" / "engine" / "engine.py").read_text(encoding="utf-8"),
        "languages": LANGUAGES,
    }


@contextmanager
def open_on_cpu(gguf: Path, cache_dir: Path) -> Iterator[OpenedModel]:
    """Raises ``LoadError``."""
    spec = LoadSpec(job_id="quality", model="quality", source=f"path:{gguf}", devices=["cpu"])
    opened = open_model(spec, cache_dir, lambda progress: None)
    assert isinstance(opened, OpenedModel)
    try:
        yield opened
    finally:
        opened.close()


def prompts(opened: OpenedModel) -> dict[str, list[int]]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
    return {name: tokenizer(text)["input_ids"][:MAX_TOKENS] for name, text in texts().items()}


@torch.inference_mode()
def exact_logits(opened: OpenedModel, ids: torch.Tensor) -> torch.Tensor:
    """(num_tokens, vocab_size), with weights that are dequantised layer by layer."""
    factory = LinearFactory(torch.device("cpu"), torch.float32, prefill_copies=False, exact=True)
    weights = OpenedWeights(opened.files, factory, lambda _: None)
    step = StepInput.of_sequence(ids.numpy(), 1, logit_rows=ALL_ROWS)
    return prompt_logits(opened.config, weights, step, lambda _: None)


def exact_log_probabilities(opened: OpenedModel, token_ids: Sequence[int]) -> list[float]:
    """Scores each token but the first."""
    ids = torch.tensor(token_ids, dtype=torch.int32)
    return following(exact_logits(opened, ids), ids)


def following(logits: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """``logits`` (num_tokens, vocab_size), ``ids`` (num_tokens,)."""
    chosen = logits[:-1].float().log_softmax(-1)
    found: list[float] = chosen.gather(1, ids[1:].long().unsqueeze(1)).squeeze(1).tolist()
    return found


def mean_error(found: Sequence[float], exact: Sequence[float]) -> float:
    """In nats, absolute."""
    return statistics.fmean(abs(a - b) for a, b in zip(found, exact, strict=True))


PROMPT_TOKENS = 128
VOCAB_SIZE = 50_000


class FreeExecutor:
    def execute(self, schedule: Schedule) -> Sampled:
        return Sampled([7] * len(schedule.sampled), {}, {})

    def recover(self, error: Exception) -> StepFault:
        raise error

    def forget(self, sequence: EngineSequence) -> None:
        pass


def bookkeeping_ms_per_step(num_sequences: int = 256, num_steps: int = 200) -> float:
    num_blocks = num_sequences * 16
    engine = Engine(
        FreeExecutor(),  # type: ignore[arg-type]
        Scheduler(
            KVCache(num_blocks),
            SchedulerLimits(max_running=num_sequences, max_queue_depth=num_sequences),
        ),
        EngineLimits(context_tokens=512, vocab_size=VOCAB_SIZE),
    )
    for index in range(num_sequences):
        engine.submit(
            SubmitSequence(
                sequence_id=f"sequence-{index}",
                token_ids=[index, *range(PROMPT_TOKENS - 1)],
                params=SamplingParams(max_tokens=512, stop_token_ids=[2]),
            )
        )
    while engine.stats().queue_depth > 0:
        engine.step()
    engine.step()
    seconds = []
    for _ in range(num_steps):
        started_s = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds) * 1e3
