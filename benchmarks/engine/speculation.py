"""What prompt lookup brings beside none: the same requests, in turns, by one engine.

    python -m benchmarks.engine.speculation MODEL.gguf [--turns 5] [--at-once 1 8 32]

Greedy edits of code and extraction from a document repeat much of their prompt; free text, drawn at
temperature 0.8, repeats nothing. Requests end where the model ends them. Answers are compared: they
have to be the same. The engine's drafts are switched off for every other run, so that both read the
same weights with the same threads, seconds apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from llguidance import LLTokenizer

from benchmarks.engine.decoding import Decoded, decode
from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads, load_engine
from inference.protocol.engine import SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams

OUTPUT_TOKENS = 160
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
CODE = """def total_price(orders, rate):
    total = 0
    for order in orders:
        if order.quantity > 0:
            total = total + order.quantity * order.unit_price
        else:
            print("skipped", order.number)
    tax = total * rate
    total = total + tax
    return round(total, 2)


def print_bill(customer, orders, rate):
    print("Bill for", customer.name)
    for order in orders:
        print(order.number, order.quantity, order.unit_price)
    print("Total:", total_price(orders, rate))
"""
PEOPLE = (
    ("Maria Lindgren", "maria.lindgren@example.org", "Uppsala", 4127),
    ("Thomas Okafor", "t.okafor@example.com", "Lagos", 9530),
    ("Yuki Hasegawa", "hasegawa.yuki@example.net", "Sapporo", 7712),
    ("Elena Petrova", "elena.petrova@example.org", "Plovdiv", 3308),
    ("Ahmed Mansour", "a.mansour@example.com", "Alexandria", 6054),
    ("Clara Weber", "clara.weber@example.net", "Rostock", 2891),
)
DOCUMENT = "\n".join(
    f"Customer {name} of {town} wrote from {address} about order number {order}; it was sent late."
    for name, address, town, order in PEOPLE
)
TASKS = {
    "code edit": f"Repeat this program exactly, but rename the function total_price to cost, {{}} "
    f"times:\n```python\n{CODE}```",
    "extraction": f"{DOCUMENT}\n\nFor note {{}}: list each customer with town, e-mail address and "
    "order number, one line each, in the order of the text.",
    "free text": "Write a short story about a lighthouse keeper who finds {} letters in a bottle.",
}
DRAWN = ("free text",)


@dataclass(frozen=True, slots=True)
class Comparison:
    task: str
    at_once: int
    plain_tokens_per_s: float
    speculating_tokens_per_s: float
    ratio: float
    """Median of the turns' ratios of tokens a second."""
    cpu_ratio: float
    """The ratio of the least CPU time that either took in a turn: below 1 is less. All turns do the
    same work, and other users of the machine only add to it."""
    accepted: float
    """Part of the drafted tokens that were right."""
    are_same: bool


class Subject:
    """One engine, whose drafts can be switched off."""

    def __init__(self, model: Path, data_dir: Path) -> None:
        spec = LoadSpec(
            job_id="bench",
            model="bench",
            source=f"path:{model}",
            devices=["cpu"],
            kv_memory_bytes=512 * 1024**2,
            speculation="prompt_lookup",
        )
        loaded = load_engine(spec, data_dir, lambda progress: None)
        assert isinstance(loaded.engine, Engine), "what is measured is a text model's"
        self.engine = loaded.engine
        self._speculator = self.engine.scheduler.speculator
        self._stop_ids = list(loaded.report.eos_token_ids)
        file = Path(loaded.report.tokenizer_dir) / "tokenizer.json"
        self._tokenizer = LLTokenizer(file.read_text(encoding="utf-8"))

    def run(self, task: str, at_once: int, is_drafting: bool) -> Decoded:
        self.engine.scheduler.speculator = self._speculator if is_drafting else None
        found = decode(self.engine, [self._request(task, i) for i in range(at_once)])
        if not found.num_tokens:
            raise RuntimeError(f"the model answers nothing to: {task}")
        return found

    def _request(self, task: str, index: int) -> SubmitSequence:
        text = CHAT.format(TASKS[task].format(index + 2))
        return SubmitSequence(
            sequence_id=str(index),
            token_ids=self._tokenizer.tokenize_str(text, parse_special=True),
            params=SamplingParams(
                max_tokens=OUTPUT_TOKENS,
                temperature=0.8 if task in DRAWN else 0.0,
                seed=index,
                stop_token_ids=self._stop_ids,
            ),
        )


def compare(subject: Subject, task: str, at_once: int, num_turns: int) -> Comparison:
    """The first turn pays for first times and is not kept."""
    pairs: list[tuple[Decoded, Decoded]] = []
    for turn in range(num_turns + 1):
        order = (False, True) if turn % 2 else (True, False)
        readings = {drafting: subject.run(task, at_once, drafting) for drafting in order}
        if turn > 0:
            pairs.append((readings[False], readings[True]))
    drafted = sum(two.num_drafted_tokens for _, two in pairs)
    accepted = sum(two.num_accepted_drafts for _, two in pairs)
    return Comparison(
        task,
        at_once,
        statistics.median(one.tokens_per_s for one, _ in pairs),
        statistics.median(two.tokens_per_s for _, two in pairs),
        statistics.median(one.seconds / two.seconds for one, two in pairs),
        min(two.cpu_seconds for _, two in pairs) / min(one.cpu_seconds for one, _ in pairs),
        accepted / drafted if drafted else 0.0,
        all(one.answers == two.answers for one, two in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--data-dir", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        subject = Subject(arguments.model, arguments.data_dir or Path(temporary))
        for at_once in arguments.at_once:
            for task in arguments.tasks:
                found = compare(subject, task, at_once, arguments.turns)
                print(json.dumps(asdict(found)) if arguments.json else _line(found), flush=True)


def _line(found: Comparison) -> str:
    same = "the same answers" if found.are_same else "OTHER ANSWERS"
    return (
        f"{found.task}, {found.at_once} at once: {found.plain_tokens_per_s:.0f} tok/s, with lookup "
        f"{found.speculating_tokens_per_s:.0f} ({found.ratio:.2f} times as fast, CPU time "
        f"{found.cpu_ratio:.2f}), {found.accepted:.0%} of the drafts right, {same}"
    )


if __name__ == "__main__":
    main()
