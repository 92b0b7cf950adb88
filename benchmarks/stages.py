"""A model in two stages beside the same model whole, each on one core, predicted and measured:

    python -m benchmarks.stages MODEL.gguf [--turns 5] [--tokens 24] [--link-delay-ms 0.2] [--json]

    whole            one process on core 0
    one at a time    two stages, cores 0 and 1; a step begins when the last one is done
    in flight        the same; as many groups as stages
    …, linked        the second stage is another neuron's process, over TLS on loopback; with
                     --link-delay-ms behind a relay that holds all it passes for that long

Tokens per second of 1 and of 8 requests that decode. The prediction is the planner's, with the
speed of a device that is as fast as the whole model was measured: it shows what dividing costs and
what groups gain, not how fast a machine is. The layers are divided so that both stages take alike
long, the head among the first one's. Each turn measures all of them, one after the other, and
medians count. Needs two cores that have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from benchmarks.remote_stage import remote_stage
from benchmarks.report import machine
from fleet.placement.stages.devices import LAYER_S, NETWORK, Speed, StageDevice
from fleet.placement.stages.prediction import step_s, tokens_per_s
from fleet.placement.stages.search import Share
from fleet.placement.stages.step_times import StepTimes
from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.loading.costs.model_costs import ModelCosts
from inference.loading.costs.read_costs import read_costs
from inference.loading.sources.sources import fetch_files
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec, StageSpec
from inference.protocol.sampling import SamplingParams

FEW, MANY = 1, 8
WHOLE, ONE_AT_A_TIME, IN_FLIGHT = "whole", "one at a time", "in flight"
LINKED = {ONE_AT_A_TIME: "one at a time, linked", IN_FLIGHT: "in flight, linked"}
NUM_LINKS = 2
"""That a step's rows cross: to the second stage, and back."""
PROMPT_TOKENS = 32
KV_BYTES = 200_000_000
SETTLING_TOKENS = 4
"""Each request has had as many tokens when the clock starts."""


@dataclass(frozen=True, slots=True)
class Row:
    how: str
    num_requests: int
    predicted_tokens_per_s: float
    tokens_per_s: float
    """Median of the turns."""


@dataclass(slots=True)
class Subject:
    """One way to run the model. ``cores``: of the engine's process and of each stage's, whose
    processes are ``stage_pids``."""

    loaded: LoadedEngine
    cores: Sequence[int]
    stage_pids: Sequence[int] = ()

    @property
    def engine(self) -> Engine:
        assert isinstance(self.loaded.engine, Engine), "a model of text"
        return self.loaded.engine

    @contextmanager
    def on_its_cores(self) -> Iterator[None]:
        """Pins every thread of the subject's processes to its cores."""
        for pid, core in zip([os.getpid(), *self.stage_pids], self.cores, strict=True):
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, {core})
        yield

    def tokens_per_s(self, num_requests: int, num_tokens: int, seed: int) -> float:
        """Returns the output tokens per second of all requests together, measured once each request
        has ``SETTLING_TOKENS``."""
        engine = self.engine
        length = 4 * num_tokens + SETTLING_TOKENS
        for index in range(num_requests):
            prompt = [(seed * 131 + index * 37 + 7 * n) % 900 + 100 for n in range(PROMPT_TOKENS)]
            params = SamplingParams(max_tokens=length, temperature=0.0)
            engine.submit(SubmitSequence(sequence_id=str(index), token_ids=prompt, params=params))
        counts = dict.fromkeys(map(str, range(num_requests)), 0)
        while min(counts.values()) < SETTLING_TOKENS:
            _count(engine, counts)
        started_s, before = time.perf_counter(), sum(counts.values())
        while sum(counts.values()) - before < num_tokens * num_requests:
            _count(engine, counts)
        rate = (sum(counts.values()) - before) / (time.perf_counter() - started_s)
        engine.cancel_all()
        return rate


def _count(engine: Engine, counts: dict[str, int]) -> None:
    for output in engine.step().outputs:
        if not isinstance(output, SequenceStep) or output.finish_reason is not None:
            raise RuntimeError(f"a request ended early: {output}")
        counts[output.sequence_id] += len(output.token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a file or directory")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="of each request, in each turn (24)")
    parser.add_argument(
        "--link-delay-ms", type=float, help="each way, of a relay between the hosts"
    )
    parser.add_argument("--data-dir", type=Path, help="keeps compiled kernels")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("two cores are needed")
    with tempfile.TemporaryDirectory(prefix="helexa-bench-") as folder:
        data_dir = options.data_dir or Path(folder)
        rows = measure(
            options.model.resolve(),
            data_dir,
            cores[:2],
            options.turns,
            options.tokens,
            options.link_delay_ms,
        )
    if options.json:
        found = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        found_ms = link_ms(rows)
        print(json.dumps({"machine": machine(), "rows": found, "link_ms": found_ms}, indent=1))
        return
    print(machine())
    print(f"{'':24}requests   predicted    measured  tokens/s")
    for row in rows:
        print(
            f"{row.how:24}{row.num_requests:8}{row.predicted_tokens_per_s:12.1f}"
            f"{row.tokens_per_s:12.1f}"
        )
    print(f"a link between hosts adds {link_ms(rows):.2f} ms to a lone request's step")


def measure(
    model: Path,
    data_dir: Path,
    cores: Sequence[int],
    turns: int,
    num_tokens: int,
    link_delay_ms: float | None = None,
) -> list[Row]:
    torch.set_num_threads(1)
    spec = LoadSpec(
        job_id="bench",
        model="bench",
        source=f"path:{model}",
        devices=["cpu"],
        kv_memory_bytes=KV_BYTES,
    )
    costs = read_costs(fetch_files(spec, data_dir, 2**62, lambda _: None), spec)
    whole = Subject(load_engine(spec, data_dir, lambda _: None), cores[:1])
    num_first = even_split(costs)
    torch.set_num_threads(2)  # which the stages divide
    divided = stages_of(spec, costs, num_first)
    with ExitStack() as running:
        staged = running.enter_context(_loaded(divided, data_dir))
        stage_pids = [child.end.pid for child in staged.children.all]  # type: ignore[union-attr]
        remote = running.enter_context(remote_stage(divided, data_dir, link_delay_ms))
        linked = running.enter_context(_loaded(remote.spec, data_dir))
        subjects = {
            WHOLE: whole,
            ONE_AT_A_TIME: Subject(staged, cores, stage_pids),
            LINKED[ONE_AT_A_TIME]: Subject(linked, cores, [remote.pid]),
        }
        measured = _in_turns(subjects, turns, num_tokens)
    return rows_of(costs, num_first, measured)


@contextmanager
def _loaded(spec: LoadSpec, data_dir: Path) -> Iterator[LoadedEngine]:
    loaded = load_engine(spec, data_dir, _silent)
    assert loaded.children is not None
    try:
        yield loaded
    finally:
        loaded.children.close()


def _silent(progress: object) -> None:
    """The progress of the load is not shown."""


def stages_of(spec: LoadSpec, costs: ModelCosts, num_first: int) -> LoadSpec:
    bounds = (0, num_first), (num_first, len(costs.layers))
    stages = [StageSpec(device="cpu", layers=layers) for layers in bounds]
    return LoadSpec(
        job_id=spec.job_id,
        model=spec.model,
        source=spec.source,
        devices=spec.devices,
        kv_memory_bytes=spec.kv_memory_bytes,
        stages=stages,
    )


def even_split(costs: ModelCosts) -> int:
    """How many layers the first stage has, so that its head and they take as long as the others,
    by what they multiply."""
    layer = sum(
        one.num_weights + costs.active_share * one.num_expert_weights for one in costs.layers
    ) / len(costs.layers)
    head_layers = costs.num_head_weights / layer
    return max(1, round((len(costs.layers) - head_layers) / 2))


Measured = dict[tuple[str, int], list[float]]


def _in_turns(subjects: Mapping[str, Subject], turns: int, num_tokens: int) -> Measured:
    found: Measured = {}
    groups = {how: one.engine.run_ahead for how, one in subjects.items() if how != WHOLE}
    for turn in range(turns):
        for num_requests in (FEW, MANY):
            for how, subject in subjects.items():
                names = [how]
                if how != WHOLE:
                    assert groups[how] is not None, "stages have groups"
                    names.append(IN_FLIGHT if how == ONE_AT_A_TIME else LINKED[IN_FLIGHT])
                for name in names:
                    if how != WHOLE:
                        subject.engine.run_ahead = None if name == how else groups[how]
                    with subject.on_its_cores():
                        rate = subject.tokens_per_s(num_requests, num_tokens, seed=turn)
                    found.setdefault((name, num_requests), []).append(rate)
    return found


def link_ms(rows: Sequence[Row]) -> float:
    """What a link between hosts adds to a lone request's step, over one within the host."""
    rates = {row.how: row.tokens_per_s for row in rows if row.num_requests == FEW}
    return 1000 * (1 / rates[LINKED[ONE_AT_A_TIME]] - 1 / rates[ONE_AT_A_TIME]) / NUM_LINKS


def rows_of(costs: ModelCosts, num_first: int, measured: Measured) -> list[Row]:
    medians = {key: statistics.median(rates) for key, rates in measured.items()}
    device = fitted(costs, medians[WHOLE, FEW], medians[WHOLE, MANY])
    times, num_layers = StepTimes(costs), len(costs.layers)
    whole = [Share(device, num_layers)]
    shares = [Share(device, num_first), Share(device, num_layers - num_first)]
    rows = []
    for (how, num_requests), rate in medians.items():
        if how in (IN_FLIGHT, LINKED[IN_FLIGHT]):
            predicted = tokens_per_s(times, shares, num_requests)
        else:
            own = whole if how == WHOLE else shares
            predicted = num_requests / step_s(times, own, num_requests)
        rows.append(Row(how, num_requests, predicted, rate))
    return rows


def fitted(costs: ModelCosts, few_tokens_per_s: float, many_tokens_per_s: float) -> StageDevice:
    """A device that computes the whole model as fast as was measured: one row as fast as it reads,
    many as fast as it multiplies."""
    num_layers = len(costs.layers)
    layers_s = num_layers * LAYER_S["cpu"]
    num_bytes = costs.head_bytes.cpu + costs.weight_bytes.cpu - costs.outer_bytes.cpu
    num_weights = costs.num_head_weights + sum(
        layer.num_weights + costs.active_share * layer.num_expert_weights for layer in costs.layers
    )
    speed = Speed(
        bytes_per_s=num_bytes / (FEW / few_tokens_per_s - layers_s),
        flops_per_s=2 * MANY * num_weights / (MANY / many_tokens_per_s - layers_s),
    )
    return StageDevice(
        neuron="bench", name="cpu", kind="cpu", free_bytes=2**62, speed=speed, link=NETWORK
    )


if __name__ == "__main__":
    main()
