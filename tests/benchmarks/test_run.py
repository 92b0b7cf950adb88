"""The benches' own logic, on subjects that answer at once: which subjects, rows and parts a command
line chooses, and what is made of their readings; and the gateway's benchmark, run small."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import socket
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from benchmarks import ports
from benchmarks.command import Selection, arguments_parser, select
from benchmarks.first_hour import Result, keep_state, open_parts, read_state, run_part
from benchmarks.first_hour_parts import PART_LIMIT_S, Host, Part, make, parts_of
from benchmarks.gateway.load import Load, Reading, UnexpectedAnswerError, http_request
from benchmarks.gateway.load import run as run_load
from benchmarks.gateway.upstream import serve
from benchmarks.ports import HOST, free_port
from benchmarks.rounds import (
    INTERPRETER_ROW,
    MEMORY_ROW,
    Measurement,
    Results,
    as_json,
    measurements,
    memory_over_llama_cpp,
    print_table,
    run,
    warm_name,
)
from benchmarks.subject import SubjectError
from benchmarks.subjects import tokens_per_s_together
from helexa_site.program import REPOSITORY_DIR
from tests.cases import each_case


class FakeSubject:
    """Stands where ``SubjectProcess`` is; rates grow with the round, so that medians show."""

    def __init__(self, kind: str, factor: float, asked: list[tuple[str, int]]) -> None:
        self.kind, self.description = kind, f"{kind} of this test"
        self.asked, self._factor = asked, factor

    def close(self) -> None: ...

    def ask(self, *, seed: int, measure: str, **question: Any) -> Any:
        self.asked.append((self.kind, seed))
        if self.kind == "mortal" and seed > 1000:
            raise SubjectError("mortal ended by SIGILL")
        if measure == "time_to_first_token":
            return None if self.kind == "forgetful" else [2.0 / self._factor, 1.0 / self._factor]
        return self._factor * (seed // 1000)


def results_of(
    num_rounds: int, *subjects: FakeSubject, rows: list[Measurement] | None = None
) -> Results:
    results = Results({subject.kind: subject.description for subject in subjects})
    chosen = rows or list(measurements())
    run(subjects, results, measurements=chosen, num_rounds=num_rounds, on_reading=Mock())
    return results


def test_subjects_alternate_and_medians_are_of_all_rounds_but_the_first() -> None:
    """A subject without an answer has a gap. The table and the JSON agree."""
    asked: list[tuple[str, int]] = []
    pair = FakeSubject("ours", 30.0, asked), FakeSubject("forgetful", 10.0, asked)
    results_of(1, *pair)
    num_rows = len(list(measurements()))
    assert all(seed == other for (_, seed), (_, other) in zip(asked[::2], asked[1::2], strict=True))
    assert [kind for kind, _ in asked[::2]] == ["forgetful"] * num_rows + ["ours"] * num_rows
    results = results_of(3, *pair)
    name = next(measurements()).name
    assert results.readings[name]["ours"] == [30.0, 60.0, 90.0]
    assert results.median(name, "ours") == 60.0
    cold = next(row.name for row in measurements() if row.name.startswith("TTFT"))
    assert results.median(cold, "forgetful") is None
    assert results.median(warm_name(cold), "ours") is not None
    text = io.StringIO()
    print_table(results, Console(file=text, width=200))
    assert "3.00x" in text.getvalue()
    assert as_json(results)["measurements"].keys() == results.readings.keys()


def test_ratios_of_rounds_and_of_memory_and_a_subject_that_ends() -> None:
    results = Results({"helexa_engine": "ours", "llama_cpp": "theirs"})
    for ours, theirs in ((10.0, 5.0), (8.0, 2.0), (3.0, 1.0)):
        results.add("decode", "tok/s", "helexa_engine", ours)
        results.add("decode", "tok/s", "llama_cpp", theirs)
    assert results.median_ratio("decode", "helexa_engine", "llama_cpp") == 3.0
    assert results.median_ratio("decode", "helexa_engine", "nobody") is None
    results.add(MEMORY_ROW, "MiB", "helexa_engine", 900.0)
    assert memory_over_llama_cpp(results) is None
    results.add(MEMORY_ROW, "MiB", "llama_cpp", 500.0)
    results.add(INTERPRETER_ROW, "MiB", "helexa_engine", 300.0)
    assert memory_over_llama_cpp(results) == 1.2, "without our interpreter"
    first, second = list(measurements())[:2]
    subjects = FakeSubject("mortal", 30.0, []), FakeSubject("ours", 10.0, [])
    results = results_of(2, *subjects, rows=[first, second])
    assert results.ended == {"mortal": f"mortal ended by SIGILL, asked for {second.name}"}
    assert results.readings[first.name] == {"mortal": [30.0], "ours": [10.0, 20.0]}
    assert results.readings[second.name] == {"ours": [10.0, 20.0]}
    for times, rate in (
        ([[1.0, 2.0, 3.0]] * 8, 8.0),
        ([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]], 4 / 2.0),
    ):
        assert tokens_per_s_together(times) == pytest.approx(rate)
    with pytest.raises(ValueError, match="never decoding together"):
        tokens_per_s_together([[0.0, 1.0], [2.0, 3.0]])


def chosen_by(*words: str) -> Selection:
    return select(arguments_parser().parse_args(words))


def test_rows_and_subjects_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_by().rows == list(measurements())
    selection = chosen_by("--only", "decode, 8", "memory")
    names = [row.name for row in selection.rows]
    assert names == ["decode, 8 at once", "memory, resident", "memory, interpreter"]
    assert selection.own_rows == []
    assert chosen_by("--beside", str(REPOSITORY_DIR)).beside == [REPOSITORY_DIR]
    for words, reason in (
        (("--only", "decode, 7"), "'decode, 7'"),
        (("--beside", str(REPOSITORY_DIR), f"/else/{REPOSITORY_DIR.name}"), "have one name"),
        (("--beside", str(tmp_path)), f"{tmp_path} is no checkout"),
    ):
        with pytest.raises(ValueError, match=reason):
            chosen_by(*words)
    both = ("--subjects", "helexa_http", "helexa_engine")
    assert chosen_by(*both).kinds == ["helexa_engine", "helexa_http"]
    assert chosen_by(*both, "--no-http").kinds == ["helexa_engine"]
    without = chosen_by("--subjects", "vllm", "--vllm-python", str(tmp_path / "none"))
    assert without.kinds == [] and "no interpreter" in without.missing["vllm"]
    monkeypatch.setattr(
        "benchmarks.command.importlib.util.find_spec",
        lambda name: None if name in ("accelerate", "llama_cpp") else object(),
    )
    selection = chosen_by("--subjects", "transformers_generate", "llama_cpp")
    assert selection.kinds == []
    needs = "pip install accelerate brings what it needs"
    assert selection.missing["transformers_generate"] == needs
    assert "llama-cpp-python" in selection.missing["llama_cpp"]


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_port, other_port = ports.free_port(), ports.free_port()
    with (
        socket.create_server((HOST, 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        used = {one.getsockname()[1] for one in (server, connection)}
        assert not used & {*ports.PORTS}, "connections get others"
    monkeypatch.setattr(ports, "PORTS", [taken_port, other_port])
    with socket.create_server((HOST, taken_port)):
        assert {ports.free_port() for _ in range(20)} == {other_port}


SMALL = ["--rounds", "1", "--seconds", "0.5", "--warm-up", "0.1", "--clients", "2", "--json"]


@pytest.mark.slow
def test_both_servers_are_measured_beside_their_upstream() -> None:
    command = [str(REPOSITORY_DIR / "scripts" / "bench-gateway"), "--upstream", *SMALL]
    printed = subprocess.check_output(command, cwd=REPOSITORY_DIR, text=True)
    results = json.loads(printed)
    cells = {(row["server"], row["streams"], row["num_clients"]) for row in results}
    servers = ("daphne", "daphne, upstream", "uvicorn", "uvicorn, upstream")
    assert cells == {(server, streams, 2) for server in servers for streams in (True, False)}
    for middle in (row["median"] for row in results):
        assert middle["cpu_ms_per_request"] > 0
        # 16 tokens, 2 ms apart, for two clients.
        assert 30 <= middle["p50_ms"] <= middle["p99_ms"]
        assert 0 < middle["requests_per_s"] <= 2 / 0.030


def answering(data: bytes) -> Any:
    """A server that answers so and hangs up."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return answer


refuse = answering(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
hang_up = answering(b"HTTP/1.1 200 OK\r\n")


@each_case(
    ("server", "streams", "num_tokens", "reason"),
    [
        (serve, True, 16, None),
        (serve, False, 16, None),
        (serve, False, 15, "16 tokens came where 15 were asked for"),
        (refuse, True, 16, "the status is not 200.*503"),
        (hang_up, True, 16, "the connection was closed"),
    ],
)
def test_clients_count_tokens_and_an_unexpected_answer_ends_the_run(
    server: Any, streams: bool, num_tokens: int, reason: str | None
) -> None:
    request = http_request("any", streams=streams, authorization="Bearer none")
    bounds: Any = {"num_clients": 2, "num_tokens": num_tokens, "warm_up_s": 0.0, "seconds": 0.1}
    load = Load(port=free_port(), request=request, **bounds)

    async def measured() -> Reading:
        async with await asyncio.start_server(server, HOST, load.port):
            return await run_load(load, count(1.0, 0.6).__next__)  # the server uses 0.6 s

    if reason is not None:
        with pytest.raises(UnexpectedAnswerError, match=reason):
            asyncio.run(measured())
        return
    reading = asyncio.run(measured())
    assert reading.num_requests >= 6
    assert 30 <= reading.p50_ms <= reading.p99_ms
    assert 0 < reading.requests_per_s <= 2 / 0.030
    assert reading.cpu_ms_per_request == pytest.approx(600 / reading.num_requests)


MUCH = 10**12
CARD = Host(device="cuda:0", card_bytes=MUCH, disk_bytes=MUCH, data_dir=Path("data"), num_threads=2)
TRIAL = replace(CARD, device="cpu", card_bytes=0)


def test_every_part_can_be_run_and_ends_within_eight_minutes() -> None:
    """Each test that needs a card is in one; those that would all be skipped have not passed."""
    trial = {part.name: part for part in parts_of(TRIAL)}
    tests = [part for name, part in trial.items() if name.startswith("tests of")]
    assert tests and all("skipped" in part.left_out for part in tests)
    assert not trial["doctor"].left_out
    parts = {part.name: part for part in parts_of(CARD)}
    assert len(parts) == len(parts_of(CARD)) and "tests of attention" in parts
    for part in parts.values():
        assert not part.left_out and 0 < part.limit_s <= PART_LIMIT_S == 8 * 60
        assert part.command[0] == "-m"
        assert importlib.util.find_spec(part.command[1]) is not None, part.command
    for name in ("exactness", "packed", "linear"):
        *_, marks, path = parts[f"tests of {name}"].command
        assert marks == "gpu" and path.endswith(f"test_{name}.py")


def part(name: str, code: str = "pass", limit_s: int = 60, left_out: str = "") -> Part:
    return Part(name=name, command=("-c", code), limit_s=limit_s, left_out=left_out)


def test_a_run_resumes_after_the_parts_that_ended(tmp_path: Path) -> None:
    parts = [part("a"), part("b"), part("c", left_out="no room"), part("d")]
    assert read_state(tmp_path) == {}
    ended = Result(outcome="passed", seconds=1, summary="", log="")
    kept = {"a": ended, "b": replace(ended, outcome="timed out")}
    keep_state(tmp_path, kept)
    results = read_state(tmp_path)
    assert results == kept
    for only, again, expected in (
        ([], [], ["d"]),
        ([], ["failed"], ["b", "d"]),
        (["a", "b"], ["b"], ["b"]),
    ):
        found = open_parts(parts, results, only=only, again=again)
        assert [one.name for one in found] == expected, (only, again)
    (tmp_path / "state.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"state\.json is no state"):
        read_state(tmp_path)


@pytest.mark.slow
def test_a_load_on_the_cpu(tmp_path: Path, native_cache_dir: Path) -> None:
    """One part of all, whole: its engine is a process of its own, as on a card."""
    make("packed", "tiny-dense", tmp_path, "cpu")
    cache = tmp_path / "engine" / "cache"
    cache.mkdir(parents=True)
    (cache / "native").symlink_to(native_cache_dir)
    tiny = replace(TRIAL, data_dir=tmp_path)
    (load,) = [part for part in parts_of(tiny) if part.name == "load of packed tiny-dense"]
    environment = os.environ | {"HELEXA_DATA_DIR": str(tmp_path / "engine")}
    found = run_part(load, tmp_path / "load.1", environment, "")
    assert found.outcome == "passed", (tmp_path / "load.1.err").read_text()
    assert "answers_alike yes" in found.summary
