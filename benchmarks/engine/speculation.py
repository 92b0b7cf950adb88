"""What prompt lookup brings beside none: the same requests, in turns, in one process.

    python -m benchmarks.engine.speculation MODEL.gguf [--turns 3] [--at-once 1 8 32]

Greedy edits of code and extraction from a document repeat much of their prompt; free text, drawn at
temperature 0.8, repeats nothing. Requests end where the model ends them. Answers are compared: they
have to be the same. Two engines of one process share its threads, and the second one comes off
worse: for speeds, run each with ``--alone`` in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from llguidance import LLTokenizer

from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads, load_engine
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec, Speculation
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
class Reading:
    seconds: float
    cpu_seconds: float
    answers: list[list[int]]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))


@dataclass(frozen=True, slots=True)
class Comparison:
    task: str
    at_once: int
    plain_tokens_per_s: float
    speculating_tokens_per_s: float
    ratio: float
    """Median of the turns' ratios of tokens a second."""
    cpu_ratio: float
    """The same of CPU time: below 1 is less."""
    accepted: float
    """Part of the drafted tokens that were right."""
    are_same: bool


class Subject:
    def __init__(self, model: Path, data_dir: Path, speculation: Speculation) -> None:
        spec = LoadSpec(
            job_id="bench",
            model="bench",
            source=f"path:{model}",
            devices=["cpu"],
            kv_memory_bytes=512 * 1024**2,
            speculation=speculation,
        )
        loaded = load_engine(spec, data_dir, lambda progress: None)
        assert isinstance(loaded.engine, Engine), "what is measured is a text model's"
        self.engine = loaded.engine
        self._stop_ids = list(loaded.report.eos_token_ids)
        file = Path(loaded.report.tokenizer_dir) / "tokenizer.json"
        self._tokenizer = LLTokenizer(file.read_text(encoding="utf-8"))

    def run(self, task: str, at_once: int, turn: int) -> Reading:
        """From when all prompts are computed. Answers are in the order of the requests."""
        answers: dict[str, list[int]] = {}
        for index in range(at_once):
            text = CHAT.format(TASKS[task].format(turn * at_once + index + 2))
            params = SamplingParams(
                max_tokens=OUTPUT_TOKENS,
                temperature=0.8 if task in DRAWN else 0.0,
                seed=index,
                stop_token_ids=self._stop_ids,
            )
            token_ids = self._tokenizer.tokenize_str(text, parse_special=True)
            answers[str(index)] = []
            self.engine.submit(
                SubmitSequence(sequence_id=str(index), token_ids=token_ids, params=params)
            )
        while self.engine.has_prompts:
            self._step(answers)
        num_before = sum(map(len, answers.values()))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while self.engine.has_work:
            self._step(answers)
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        if sum(map(len, answers.values())) == num_before:
            raise RuntimeError(f"the model answers nothing to: {task}")
        return Reading(seconds, cpu_s, list(answers.values()))

    def _step(self, answers: dict[str, list[int]]) -> None:
        for output in self.engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            answers[output.sequence_id] += output.token_ids


def compare(
    plain: Subject, speculating: Subject, task: str, at_once: int, num_turns: int
) -> Comparison:
    """The first turn pays for first times and is not kept."""
    pairs: list[tuple[Reading, Reading]] = []
    drafted, accepted = 0, 0
    for turn in range(num_turns + 1):
        subjects = (plain, speculating) if turn % 2 else (speculating, plain)
        before = speculating.engine.stats()
        readings = {id(subject): subject.run(task, at_once, turn) for subject in subjects}
        after = speculating.engine.stats()
        if turn == 0:
            continue
        pairs.append((readings[id(plain)], readings[id(speculating)]))
        drafted += after.num_drafted_tokens - before.num_drafted_tokens
        accepted += after.num_accepted_drafts - before.num_accepted_drafts
    return Comparison(
        task,
        at_once,
        statistics.median(one.num_tokens / one.seconds for one, _ in pairs),
        statistics.median(two.num_tokens / two.seconds for _, two in pairs),
        statistics.median(one.seconds / two.seconds for one, two in pairs),
        statistics.median(two.cpu_seconds / one.cpu_seconds for one, two in pairs),
        accepted / drafted if drafted else 0.0,
        all(one.answers == two.answers for one, two in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--data-dir", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--alone",
        choices=["off", "prompt_lookup"],
        help="one engine with this setting, whose figures are for a run with the other beside it",
    )
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        data_dir = arguments.data_dir or Path(temporary)
        if arguments.alone:
            _measure_alone(arguments, data_dir)
            return
        plain = Subject(arguments.model, data_dir, "off")
        speculating = Subject(arguments.model, data_dir, "prompt_lookup")
        for at_once in arguments.at_once:
            for task in arguments.tasks:
                found = compare(plain, speculating, task, at_once, arguments.turns)
                print(json.dumps(asdict(found)) if arguments.json else _line(found), flush=True)


def _measure_alone(arguments: argparse.Namespace, data_dir: Path) -> None:
    subject = Subject(arguments.model, data_dir, arguments.alone)
    subject.run(arguments.tasks[0], 1, 0)
    for at_once in arguments.at_once:
        for task in arguments.tasks:
            reading = subject.run(task, at_once, 1)
            print(
                f"{task}, {at_once} at once, {arguments.alone}: "
                f"{reading.num_tokens / reading.seconds:.0f} tok/s, "
                f"{reading.cpu_seconds:.2f} s of CPU",
                flush=True,
            )


def _line(found: Comparison) -> str:
    same = "the same answers" if found.are_same else "OTHER ANSWERS"
    return (
        f"{found.task}, {found.at_once} at once: {found.plain_tokens_per_s:.0f} tok/s, with lookup "
        f"{found.speculating_tokens_per_s:.0f} ({found.ratio:.2f} times as fast, CPU time "
        f"{found.cpu_ratio:.2f}), {found.accepted:.0%} of the drafts right, {same}"
    )


if __name__ == "__main__":
    main()
