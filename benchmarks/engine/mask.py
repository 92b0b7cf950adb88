"""What a grammar costs: a decode step of eight sequences with one and without, in turns; greedy,
where a mask is needed only when the likeliest token is not allowed, and drawn, where it always is.

``python -m benchmarks.engine.mask MODEL.gguf``
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from benchmarks.engine.steps import decode_step_ms, load_text_engine
from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads
from inference.protocol.sampling import Grammar, SamplingParams

NUM_SEQUENCES = 8
TEMPERATURES = (0.0, 1.0)
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
# So many people that no sequence ends within a turn.
SCHEMA = {"type": "array", "items": PERSON, "minItems": 50}
GRAMMAR = Grammar(text=json.dumps({"grammars": [{"json_schema": SCHEMA}]}))


@dataclass(frozen=True, slots=True)
class MaskCost:
    """Median milliseconds of a step; the share is the median of the turns' own shares."""

    temperature: float
    free_ms: float
    masked_ms: float
    share: float
    """What the grammar adds, of a step without one."""


def measure_mask_costs(model: Path, data_dir: Path, num_turns: int = 10) -> list[MaskCost]:
    """One for each of ``TEMPERATURES``."""
    engine, tokenizer = load_text_engine(model, data_dir)
    prompts = [
        tokenizer.tokenize_str(PROMPT.format(index=index), parse_special=True)
        for index in range(NUM_SEQUENCES)
    ]
    return [_measure(engine, prompts, num_turns, value) for value in TEMPERATURES]


def _measure(
    engine: Engine, prompts: list[list[int]], num_turns: int, temperature: float
) -> MaskCost:
    without = SamplingParams(max_tokens=1, temperature=temperature)
    bound = msgspec.structs.replace(without, grammar=GRAMMAR)
    decode_step_ms(engine, prompts, bound)  # compiles it, and pays for first times
    free, masked = [], []
    for _ in range(num_turns):
        free.append(decode_step_ms(engine, prompts, without))
        masked.append(decode_step_ms(engine, prompts, bound))
    shares = [with_ms / without_ms - 1 for without_ms, with_ms in zip(free, masked, strict=True)]
    medians = statistics.median(free), statistics.median(masked)
    return MaskCost(temperature, *medians, statistics.median(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--data-dir", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        data_dir = arguments.data_dir or Path(temporary)
        costs = measure_mask_costs(arguments.model, data_dir, arguments.turns)
    if arguments.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    for cost in costs:
        print(
            f"decode step of {NUM_SEQUENCES}, temperature {cost.temperature:g}: "
            f"{cost.free_ms:.2f} ms free, {cost.masked_ms:.2f} ms with a grammar, {cost.share:+.1%}"
        )


if __name__ == "__main__":
    main()
