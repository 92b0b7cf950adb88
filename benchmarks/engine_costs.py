"""The engine's cost of a decode step beside the model: its own Python, timed with an executor that
does nothing, and a grammar, alternately with one and without: greedily, where a mask is needed only
when the likeliest token is not allowed, and sampled, where it always is."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass

import msgspec
from llguidance import LLTokenizer

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule
from inference.protocol.engine import SubmitSequence
from inference.protocol.sampling import Grammar, SamplingParams

PROMPT_TOKENS = 128
VOCAB_SIZE = 50_000
NUM_SEQUENCES = 8
"""In the steps with and without a grammar."""
TEMPERATURES = (0.0, 1.0)
STEPS_PER_TURN = 40
PROMPT = (
    "<|im_start|>user\nInvent people: number {index}, and others. Answer in JSON.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["friend", "colleague", "neighbour"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "kind", "tags", "address"],
    "additionalProperties": False,
}
# So many accounts that no sequence ends within a turn.
SCHEMA = {"type": "array", "items": PERSON, "minItems": 50}
GRAMMAR = Grammar(text=json.dumps({"grammars": [{"json_schema": SCHEMA}]}))


class FreeExecutor:
    """Answers every row with a token at no cost."""

    def execute(self, schedule: Schedule) -> Sampled:
        return Sampled([7] * len(schedule.sampled), {}, {})

    def recover(self, error: Exception) -> StepFault:
        raise error

    def forget(self, sequence: Sequence) -> None:
        pass


def bookkeeping_ms_per_step(num_sequences: int = 256, num_steps: int = 200) -> float:
    """Median milliseconds of a step in which ``num_sequences`` decode, one token each."""
    num_blocks = num_sequences * 16
    engine = Engine(
        FreeExecutor(),
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


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """Median milliseconds of a step."""

    temperature: float
    free_ms: float
    bound_ms: float
    share: float
    """The grammar's cost, as a share of a step without one: the median of the turns' shares."""


def grammar_costs(engine: Engine, tokenizer: LLTokenizer, num_turns: int) -> list[GrammarCost]:
    """One for each of ``TEMPERATURES``."""
    prompts = [
        tokenizer.tokenize_str(PROMPT.format(index=index), parse_special=True)
        for index in range(NUM_SEQUENCES)
    ]
    return [_cost(engine, prompts, num_turns, temperature) for temperature in TEMPERATURES]


def _cost(
    engine: Engine, prompts: list[list[int]], num_turns: int, temperature: float
) -> GrammarCost:
    free = SamplingParams(max_tokens=1, temperature=temperature)
    bound = msgspec.structs.replace(free, grammar=GRAMMAR)
    _decode_step_ms(engine, prompts, bound)  # compiles it, and pays for first times
    turns = [
        (_decode_step_ms(engine, prompts, free), _decode_step_ms(engine, prompts, bound))
        for _ in range(num_turns)
    ]
    return GrammarCost(
        temperature,
        statistics.median(free_ms for free_ms, _ in turns),
        statistics.median(bound_ms for _, bound_ms in turns),
        statistics.median(bound_ms / free_ms - 1 for free_ms, bound_ms in turns),
    )


def _decode_step_ms(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> float:
    """Median milliseconds of a step in which every prompt's sequence decodes, each with a seed of
    its own. Raises ``RuntimeError`` when a sequence ends early."""
    # Prompts may need a step each, while earlier ones decode already.
    length = 2 * STEPS_PER_TURN + len(prompts)
    for index, prompt in enumerate(prompts):
        own = msgspec.structs.replace(params, seed=index, max_tokens=length)
        engine.submit(SubmitSequence(sequence_id=str(index), token_ids=prompt, params=own))
    outputs = engine.step().outputs
    while len(outputs) < len(prompts):
        outputs = engine.step().outputs
    seconds = []
    for _ in range(STEPS_PER_TURN):
        started_s = time.perf_counter()
        outputs = engine.step().outputs
        seconds.append(time.perf_counter() - started_s)
        if len(outputs) != len(prompts):
            raise RuntimeError(f"a sequence ended early: {outputs}")
    engine.cancel_all()
    return statistics.median(seconds) * 1e3
