"""A load of several stages answers what a load of one does, whatever is asked and cancelled, and
reports where each of them is. Stages as processes, of this host and of others: the model ends when
one of them dies or stands still, requests fail once, nothing hangs, and no process stays."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file

from inference.channel import Channel, ChannelClosedError
from inference.engine.divided import stage_processes, stage_runner
from inference.engine.divided.children import Child, ParentLink
from inference.engine.divided.stage_messages import Alive, decode_from_stage, decode_to_stage
from inference.engine.divided.stage_processes import StageProcesses
from inference.engine.errors import DeviceFault, EngineExit, HangFault, StepFault
from inference.engine.load.load_engine import LoadedEngine
from inference.loading.loader import OpenedModel, open_model
from inference.protocol import engine as protocol
from inference.protocol.images import SequenceImage, TokenRun, image_grid, num_image_tokens
from inference.protocol.load import AdapterSpec, spec_digest
from inference.protocol.load_errors import BadSourceError, PartFailedError
from tests.cases import each_case
from tests.inference.adapter_files import write_adapter
from tests.inference.engine.conftest import run, submit, tokens_of
from tests.inference.engine.divided import conftest
from tests.inference.engine.test_process import EXIT_TIMEOUT_S, EngineProcess
from tests.inference.loading.conftest import SIZES, save_directory, save_gguf
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import QWEN3_VL
from tests.processes import has_ended

TEXT = [(7 * n) % 90 + 1 for n in range(40)]


def saved_gguf(directory: Path) -> Path:
    """Packed weights, in blocks of several formats, of which each process reads its layers'."""
    wide = {"hidden_size": 256, "intermediate_size": 256}
    weights = load_file(save_directory(directory, "llama", **wide) / "model.safetensors")
    formats = {"q_proj": Type.Q4_K, "v_proj": Type.Q6_K, "up_proj": Type.Q8_0}
    types = {name: format for name in weights for key, format in formats.items() if key in name}
    return save_gguf(directory / "model.gguf", weights, types=types, sizes=SIZES | wide)


def asked_and_cancelled(engine: Any, prompt: list[int]) -> list[object]:
    """What drafts, scores and filters give, and that nothing stays of what is cancelled."""
    asked = {"top_logprobs": 3, "prompt_logprobs": 2, "logit_bias": {3: 2.0}, "top_p": 0.9}
    asked |= {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2}
    submit(engine, "scored", prompt[:70], 8, **asked)
    few_words = {"logit_bias": dict.fromkeys((5, 6, 7), 100.0)}
    submit(engine, "choice", prompt[:40], 40, **few_words)
    submit(engine, "other choice", prompt[:40], 40, same_prompt_as="choice", **few_words)
    found = run(engine)
    assert found.failed == {} and found.tokens["choice"] == found.tokens["other choice"]
    assert len(found.logprobs["scored"]) == 8 and len(found.scored["scored"]) == 69
    for num_steps in (0, 1, 2, 6):  # while it waits, in its prompt, and in its answer
        submit(engine, "cancelled", prompt, 100)
        for _ in range(num_steps):
            engine.step()
        engine.cancel(protocol.CancelSequence(sequence_id="cancelled"))
        outputs = engine.step()  # which checks that nothing is held
        assert isinstance(outputs.outputs[-1], protocol.SequenceCancelled)
        assert not engine.has_work and outputs.stats.in_flight == 0
    answers, names = conftest.Answers(), ("stays", "leaves", "stays too", "leaves too")
    for name in names:
        submit(engine, name, prompt[:20], 12)
    for _ in range(5):
        answers.step(engine)
    for name in names[1::2]:  # while their rows are under way with others'
        engine.cancel(protocol.CancelSequence(sequence_id=name))
    stayed = [answers.drain(engine).tokens[name] for name in names[::2]]
    assert [len(tokens) for tokens in stayed] == [12, 12]
    return [found.tokens, found.logprobs, found.scored, stayed]


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.parametrize(
    ("kind", "ends", "changes"),
    [
        # Natively, quantised while loading.
        ("llama", (1, 3), {"quantization": "q8", "speculation": "prompt_lookup"}),
        ("llama", (1, 3), {"dtype": "bfloat16"}),  # on torch's operators
        ("gguf", (1, 2), {}),
        ("hybrid", (1, 3, 4), {}),  # the first two keep states and no keys, the third has both
    ],
)
def test_stages_answer_as_one(
    tiny_model_dir: Path, data_dir: Path, tmp_path: Path, kind: str, ends: Any, changes: Any
) -> None:
    source = tiny_model_dir
    if kind == "gguf":
        source = saved_gguf(tmp_path)
    elif kind == "hybrid":
        source = tiny_hybrid.save(tiny_hybrid.qwen3_next(), tmp_path / "hybrid")
    prompt = [1 + token % 60 for token in conftest.PROMPT]
    alone = conftest.load(conftest.spec_of(source, **changes), data_dir)
    staged = conftest.load(conftest.spec_of(source, *ends, **changes), data_dir)
    expected = conftest.answers(alone, prompt)
    assert conftest.answers(staged, prompt) == expected
    found = [asked_and_cancelled(loaded.engine, prompt) for loaded in (alone, staged)]
    assert found[0] == found[1] or "dtype" in changes  # torch's rows are rounded by their number
    one, report = alone.report, staged.report
    assert [stage.layers for stage in report.stages] == [*pairwise((0, *ends))]
    assert all(stage.estimated_bytes > 0 < stage.kv_bytes for stage in report.stages)
    assert sum(stage.kv_bytes for stage in report.stages) == report.kv_bytes
    (memory,) = report.stage_memory
    assert (memory.device, report.device) == ("cpu", "cpu")
    assert memory.actual_bytes == report.actual_bytes
    assert staged.engine.stats().num_drafted_tokens > 0 or "speculation" not in changes
    assert report.compiled.startswith(f"{len(ends)} stages: layers 0 on cpu: ")
    assert bool(report.quality) == ("quantization" in changes)
    if kind == "gguf":
        assert report.quantization.count("Q4_K") == 2, "each stage has some"
    if kind != "llama":
        return
    assert report.kv_bytes == one.kv_bytes
    assert (report.num_kv_blocks, report.context_tokens) == (one.num_kv_blocks, one.context_tokens)
    assert (report.weight_bytes, report.num_parameters) == (one.weight_bytes, one.num_parameters)
    assert "layers 1 to 2 on cpu: " in report.compiled
    sleeper = staged.sleeper
    assert sleeper is not None
    del staged
    sleeper.fall_asleep()
    assert conftest.answers(LoadedEngine(sleeper.wake(), report), prompt) == expected


@each_case(
    ("ends", "changes", "words"),
    [
        ((1, 2), {}, r"\[0, 1\), \[1, 2\) are not the model's 3 layers"),
        ((1, 3), {"tensor_parallel": 2}, "tensor_parallel"),
        ((1, 3), {"speculation": "mtp"}, "speculation"),
        ((1, 3), {"speculation": "draft_model", "draft_model": "path:x"}, "speculation"),
        ((1, 3), {"prefix_disk_bytes": 10**9}, "prefix_disk_bytes"),
    ],
    ids=str,
)
def test_what_cannot_be_staged_is_refused_by_name(
    tiny_model_dir: Path, data_dir: Path, ends: tuple[int, ...], changes: Any, words: str
) -> None:
    with pytest.raises(BadSourceError, match=words):
        conftest.load(conftest.spec_of(tiny_model_dir, *ends, **changes), data_dir)


def test_stages_of_one_device_share_its_memory(
    tiny_model_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would fit by itself. Where layers go does not change the model."""
    assert spec_digest(conftest.spec_of(tiny_model_dir, 1, 3)) == spec_digest(
        conftest.spec_of(tiny_model_dir)
    )
    spec = conftest.spec_of(tiny_model_dir, 1, 3, kv_memory_bytes=None)
    opened = [
        open_model(spec, data_dir / "models", lambda _: None, stage=stage) for stage in (0, 1)
    ]
    needs = [one.need.required_bytes for one in opened if isinstance(one, OpenedModel)]
    free_bytes = max(needs) + min(needs) // 2
    monkeypatch.setattr("inference.loading.loader.free_memory_bytes", lambda device: free_bytes)
    with pytest.raises(PartFailedError, match="on cpu"):
        conftest.load(spec, data_dir)


def test_an_adapter_over_two_stages(tiny_model_dir: Path, data_dir: Path, tmp_path: Path) -> None:
    base = load_file(tiny_model_dir / "model.safetensors")
    write_adapter(tmp_path / "adapter", base, seed=3)
    adapter = AdapterSpec(name="a", source=f"path:{tmp_path / 'adapter'}")
    found = []
    for ends, asked in (((), adapter), ((1, 3), adapter), ((), None)):
        engine: Any = conftest.load(conftest.spec_of(tiny_model_dir, *ends), data_dir).engine
        submit(engine, "a", conftest.PROMPT, 24, adapter=asked)
        found.append(tokens_of(engine))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("family", "ends"), [(QWEN3_VL, (1, 2, 3)), (GEMMA3, (2, 7))], ids=["qwen3-vl", "gemma3"]
)
def test_images(tmp_path: Path, data_dir: Path, family: Any, ends: tuple[int, ...]) -> None:
    """The first family adds rows of its images to the output of its first two layers, each on
    another stage; tokens of the second one's see the later ones of an image, in windows."""
    pillow = pytest.importorskip("PIL.Image")
    directory = family.save(tmp_path / "model")
    found = []
    for bounds in ((), ends):
        loaded: Any = conftest.load(conftest.spec_of(directory, *bounds), data_dir)
        takes, engine = loaded.report.vision, loaded.engine
        token_ids, images = TEXT[:5], []
        for size_px in ((23, 14), (30, 22)):
            data, grid = encoded(noise_image(pillow, size_px), "PNG"), image_grid(*size_px, takes)
            run = TokenRun(len(token_ids), num_image_tokens(grid, takes.merge))
            digest = hashlib.sha256(data).hexdigest()
            images.append(SequenceImage(digest=digest, data=data, runs=[run], grid=grid))
            token_ids = [*token_ids, *[IMAGE_TOKEN] * run.num_tokens, *TEXT[5:25]]
        submit(engine, "seen", token_ids, 8, images=images)
        submit(engine, "blind", TEXT, 8)
        submit(engine, "again", token_ids, 8, images=images, same_prompt_as="seen")
        found.append(tokens_of(engine))
    assert found[0] == found[1]
    assert found[0]["seen"] == found[0]["again"] and len(found[0]["seen"]) == 8


@contextmanager
def three_stages(
    model_dir: Path, data_dir: Path
) -> Iterator[tuple[EngineProcess, psutil.Process, EngineProcess]]:
    """The engine, the process of the second stage, and the neuron's end of another neuron's third
    stage."""
    with (
        conftest.processes(conftest.ordered(model_dir, ["", "", "b"], 1, 2, 3), data_dir) as there,
        conftest.process_of(there.spec, data_dir) as engine,
    ):
        report = engine.next(protocol.Loaded).report
        assert "3 stages: layers 0 on cpu" in report.compiled
        (memory,) = report.stage_memory
        assert memory.process_bytes > 100_000_000, "several processes"
        engine.submit("one", 24)
        assert engine.outputs("one")[-1].num_output_tokens == 24
        (local,) = psutil.Process(engine.process.pid).children()
        there.stages[0].next(protocol.StageReady)
        yield engine, local, there.stages[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", ["ours", "theirs", "ours stands still", "is asked to end", "its neuron ends"]
)
def test_a_stage_that_is_lost_ends_the_model(
    tiny_model_dir: Path, data_dir: Path, lost: str
) -> None:
    """At once where it dies, and in time where it stands still and there is no step. The end of the
    engine ends the others."""
    stands = lost == "ours stands still"
    with three_stages(tiny_model_dir, data_dir) as (engine, local, remote):
        if not stands and lost != "theirs":
            engine.submit("long", 200)
        {
            "ours": local.kill,
            "theirs": remote.process.kill,
            "ours stands still": local.suspend,
            "is asked to end": lambda: remote.send(protocol.Shutdown()),
            "its neuron ends": remote.connection.close,
        }[lost]()
        if lost == "its neuron ends":
            assert remote.process.wait(EXIT_TIMEOUT_S) == EngineExit.ORPHANED
        code = engine.next(protocol.EngineFaulted).code
        assert code == ("engine_hung" if stands else "device_fault")
        expected = EngineExit.HUNG if stands else EngineExit.DEVICE_FAULT
        assert engine.process.wait(EXIT_TIMEOUT_S) == expected
        if lost.startswith("ours"):
            remote.next(protocol.StageReleased)
        if lost not in ("theirs", "its neuron ends"):
            assert remote.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
        psutil.wait_procs([local], timeout=EXIT_TIMEOUT_S)
        assert has_ended(local)


def watched() -> tuple[StageProcesses, list[StepFault]]:
    """Of stages 2 and 3, and what ends the model."""
    processes, lost = StageProcesses(conftest.spec_of(Path("/m"), 1, 2, 3)), list[StepFault]()
    names = [SimpleNamespace(name=f"stage {number}") for number in (2, 3)]
    processes.all = cast("list[Child]", names)
    processes._on_lost = lost.append
    return processes, lost


def test_two_stages_that_lose_each_other_end_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reaches both and sees nothing of it but what they report."""
    monkeypatch.setattr(stage_runner, "LOST_LINK_S", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = ParentLink(Channel(theirs), decode_to_stage, lambda: None)
        stage_runner.report_lost_link(engine, ChannelClosedError("end of file"))
        processes, lost = watched()
        assert not processes._note(1, decode_from_stage(Channel(ours).receive()))
        (fault,) = lost
        assert isinstance(fault, DeviceFault)
        assert str(fault) == "stage 3 lost a link of rows: end of file"
        engine.is_gone.set()  # then its engine knows by itself
        stage_runner.report_lost_link(engine, ChannelClosedError("end of file"))
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)


@each_case("silent_index", [0, 1])
def test_a_stage_that_stands_still_ends_the_model_in_time(
    monkeypatch: pytest.MonkeyPatch, silent_index: int
) -> None:
    """The silent stage sends until the sixtieth second. Until then there are up to four checks
    between two messages, as of processes of a busy host; from then on the other sends always."""
    processes, lost = watched()
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        for index in (0, 1):
            if index != silent_index if sum(slept_s) > 60 else len(slept_s) % 4 == 0:
                processes._note(index, Alive())

    monkeypatch.setattr(stage_processes, "time", SimpleNamespace(sleep=sleep))
    processes._watch_silence()
    (fault,) = lost
    assert isinstance(fault, HangFault)
    assert f"stage {silent_index + 2} has sent nothing" in str(fault)
    assert 0 < sum(slept_s) - 60 < 10
