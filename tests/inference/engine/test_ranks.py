"""Two ranks, in the test's process and as processes: steps that go to the other one, and the end of
the model where one fails, dies, hangs or cannot start. Which devices ``tp_smoke`` tries."""

from __future__ import annotations

import socket
import subprocess
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch

from inference.channel import Channel, ChannelClosedError
from inference.engine.divided import children, rank_follower, ranked_model
from inference.engine.divided.children import Child, ParentLink
from inference.engine.divided.rank_follower import Rank
from inference.engine.divided.rank_smoke import chosen_devices, main
from inference.engine.errors import DeviceFault, EngineExit
from inference.engine.load.build import build_engine
from inference.engine.load.memory_use import HostGauge
from inference.loading.weights.part_files import rank_files
from inference.models.backend import AnyModel
from inference.models.decoder import DecoderModel
from inference.models.paged_kv import PagedKV
from inference.models.ranks import TorchRankGroup, build_rank, file_store
from inference.models.registry import build_model
from inference.models.splits import rank_cuts, rank_share
from inference.protocol.engine import EngineFaulted, Loaded
from inference.protocol.load import LoadSpec
from tests.inference.engine.conftest import submit, tokens_of
from tests.inference.engine.test_process import EXIT_TIMEOUT_S, started
from tests.inference.models.ranks import CPU, TIMEOUT_S, MemoryFiles, random_tensors, weights_of
from tests.inference.models.tiny_configs import config_of
from tests.processes import has_ended

CONFIG = config_of("qwen3_next")
"""A config with states."""


@pytest.fixture(scope="module")
def files() -> MemoryFiles:
    return MemoryFiles(random_tensors(CONFIG))


JOIN = ranked_model.Join(
    spec=LoadSpec(job_id="j", model="m", source="path:/m"),
    rank=1,
    meeting="/meeting",
    cache_dir="/cache",
    num_threads=1,
    context_tokens=64,
    timeout_s=TIMEOUT_S,
)


@pytest.fixture
def ranked(files: MemoryFiles, tmp_path: Path) -> tuple[ranked_model.RankedModel, DecoderModel]:
    """The first rank's model, and the second's part, whose ``Rank`` runs on a thread at the other
    end of a socket."""
    ours, theirs = socket.socketpair()
    groups = [TorchRankGroup(rank, 2, CPU) for rank in (0, 1)]
    shares = [rank_share(CONFIG, rank, 2) for rank in (0, 1)]
    weights = [weights_of(rank_files(files, rank_cuts(CONFIG, share))) for share in shares]
    own, followed = (
        build_rank(CONFIG, weights[group.rank], 64, "fp32", group, shares)[0] for group in groups
    )
    join = msgspec.structs.replace(JOIN, meeting=str(tmp_path / "meeting"))
    engine = ParentLink(Channel(theirs), ranked_model.decode_leader_message, theirs.close)
    rank = Rank(join, followed, groups[1], HostGauge(), engine)

    def run() -> None:
        try:
            rank.run()
        except Exception:  # noqa: BLE001 -- its process would end
            groups[1].drop()
            theirs.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=run, daemon=True).start()
    groups[0].join(file_store(tmp_path / "meeting", 2), TIMEOUT_S)
    followers = ranked_model.Followers([])
    end = SimpleNamespace(connection=ours, end_in_words=lambda: "has ended", kill=ours.close)
    child = Child("rank 1", end, ranked_model.decode_follower_message, on_end=followers.lose_child)
    followers.all.append(child)
    built = [ranked_model.Built(device="cpu", estimated_bytes=0)]
    return ranked_model.RankedModel(own, groups[0], followers, built, TIMEOUT_S), followed


def answers_of(model: AnyModel) -> dict[str, list[int]]:
    engine = build_engine(
        model, context_tokens=64, num_kv_blocks=40, block_tokens=8, check_when_idle=True
    )
    for number in range(4):
        prompt = [3 + 5 * number + 11 * place for place in range(7)]
        submit(engine, str(number), prompt, 6)
    return tokens_of(engine)


def test_an_engine_of_two_ranks_answers_as_one(
    files: MemoryFiles, ranked: tuple[ranked_model.RankedModel, DecoderModel]
) -> None:
    expected = answers_of(build_model(CONFIG, weights_of(files), 64, "fp32"))
    assert answers_of(ranked[0]) == expected


@pytest.mark.parametrize("at_fault", [0, 1])
def test_a_step_that_fails_on_any_rank_ends_the_model(
    ranked: tuple[ranked_model.RankedModel, DecoderModel], at_fault: int
) -> None:
    """It raises in the middle: after the first layer's sum, before the second's."""

    def raising(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    model, followed = ranked
    object.__setattr__((model._model, followed)[at_fault].layers[1], "mlp", raising)
    with pytest.raises(DeviceFault):
        answers_of(model)


def test_the_free_memory_that_another_rank_reports_is_without_the_trial_s_blocks(
    ranked: tuple[ranked_model.RankedModel, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, followed = ranked
    held: weakref.WeakSet[PagedKV] = weakref.WeakSet()
    new_kv = followed.new_kv

    def remembering(*sizes: int) -> PagedKV:
        held.add(kv := new_kv(*sizes))
        return kv

    monkeypatch.setattr(followed, "new_kv", remembering)
    monkeypatch.setattr(rank_follower, "free_memory_bytes", lambda _: 1000 - 400 * len(held))
    model.new_kv(8, 8, 4)
    model.new_kv(8, 8, 4)
    assert [memory.free_bytes for memory in model.memory] == [1000]


def test_none_stays_where_one_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, fds: Mapping[str, int]) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError("no more processes")
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[*fds.values()]))
        return started[0]

    monkeypatch.setattr(children, "start_process", start)
    with pytest.raises(BlockingIOError):
        ranked_model.Followers([JOIN, JOIN])
    assert started[0].returncode is not None
    started[0].communicate()


def test_devices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, cards, num_cards, expected in (
        (None, None, 4, ["cuda:0", "cuda:1"]),
        ("cuda", None, 2, ["cuda:0", "cuda:1"]),
        (None, "3,1", 4, ["cuda:1", "cuda:3"]),
        ("cpu", None, 4, ["cpu"]),
        (None, None, 1, ["cpu"]),
    ):
        assert chosen_devices(2, kind, cards, num_cards) == expected
    for num_ranks, kind, cards, num_cards, words in (
        (2, None, "0,1", 1, "this host has 1 CUDA device, and 2 ranks need one each"),
        *((2, None, cards, 2, "2 different cards") for cards in ("0,0", "0")),
        *((2, kind, cards, 2, "by number") for kind, cards in ((None, "a,b"), ("cpu", "0,1"))),
        (1, None, None, 2, "at least 2 ranks"),
    ):
        with pytest.raises(ValueError, match=words):
            chosen_devices(num_ranks, kind, cards, num_cards)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main(["--device", "cuda"]) == 1
    assert capsys.readouterr().err == (
        "tp_smoke: this host has no CUDA devices, and 2 ranks need one each\n"
    )


@pytest.mark.slow
def test_two_ranks_on_the_processors_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("\nstatus=ok tp_size=2 devices=cpu\n")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", "dies while idle", "stands still"])
def test_a_rank_that_is_lost_ends_the_model(tiny_model_dir: Path, data_dir: Path, how: str) -> None:
    """At once where it dies; by the watchdog where it stands still."""
    stands = how == "stands still"
    environment = {"HELEXA_STEP_TIMEOUT_S": "5" if stands else "600"}
    source = f"path:{tiny_model_dir}"
    with started(source, data_dir, tensor_parallel=2, environment=environment) as engine:
        report = engine.next(Loaded).report
        assert "2 ranks on cpu, cpu" in report.compiled
        assert [rank.rank for rank in report.ranks] == [0, 1]
        assert all(rank.estimated_bytes > 0 < rank.actual_bytes for rank in report.ranks)
        assert report.actual_bytes == report.kv_bytes + sum(r.actual_bytes for r in report.ranks)
        engine.submit("one", 24)
        assert engine.outputs("one")[-1].num_output_tokens == 24
        (follower,) = psutil.Process(engine.process.pid).children()
        if stands:
            follower.suspend()
        if how != "dies while idle":
            engine.submit("long", 200)
        if not stands:
            follower.kill()
        assert engine.next(EngineFaulted).code == ("engine_hung" if stands else "device_fault")
        expected = EngineExit.HUNG if stands else EngineExit.DEVICE_FAULT
        assert engine.process.wait(EXIT_TIMEOUT_S) == expected
        with pytest.raises(ChannelClosedError):
            list(engine.messages())
        psutil.wait_procs([follower], timeout=EXIT_TIMEOUT_S)
        assert has_ended(follower)  # though it could not receive a message
