"""A sweep of the real default model through a whole server, and of a scripted endpoint whose next
build is 30 % slower by its own word: the command, the API and the pages show the regression."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import with_caches
from tests.live.serving import MODEL, REPOSITORY_DIR, Serve, operators_password, wait_until
from tests.metering.bench.scripted_endpoint import Script, running_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]
COMMAND_TIMEOUT_S = 600.0


PEERS_KEY = "sk-of-the-peer"
KEYS = {"PEER_API_KEY": PEERS_KEY, "HELEXA_BENCH_VARIABLES": "PEER_API_KEY"}


@pytest.fixture
def serve(
    tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path, default_gguf: Path
) -> Iterator[Serve]:
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    serve = Serve(data_dir, HELEXA_BENCH_PUBLIC="1", **KEYS)
    try:
        serve.wait_ready()
        wait_until(serve.is_healthy, "the server is healthy")
        yield serve
    finally:
        serve.end()


def bench(serve: Serve, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the bench beside the server, as an operator runs it there."""
    return subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "bench", *words],
        env=serve.find("gateway").environ(),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )


def test_a_sweep_of_the_fleet_and_of_an_endpoint_that_gets_slower(serve: Serve) -> None:
    script = Script()
    with running_endpoint(script) as url:
        fleet = ("once", "--url", serve.url, "--samples", "2", "--pause", "0", "--max-tokens", "8")
        scenarios = ("--scenario", "chat:64", "--scenario", "chat:64:warm", "--scenario", "load")
        swept = bench(serve, *fleet, *scenarios)
        assert swept.returncode == 0, swept.stderr + swept.stdout
        assert "6 measured, 0 failed" in swept.stdout  # a pinned model is unloaded for it as well
        peer = ("once", "--endpoint", url, "--name", "peer", "--pause", "0")
        for script.build, script.speed in (("b1", 1.0), ("b2", 0.7)):
            swept = bench(serve, *peer, "--scenario", "chat:128", "--scenario", "chat:256:warm")
            assert swept.returncode == 0, swept.stderr + swept.stdout

    rows = httpx.get(f"{serve.url}/api/bench/summary?model={MODEL}", timeout=60).json()
    by_scenario = {row["scenario_id"]: row for row in rows}
    assert by_scenario.keys() == {"chat:64", "chat:64:warm", "load"}
    assert all(row["n"] == 2 for row in rows)
    assert 0 < by_scenario["chat:64"]["ttft_s_median"] <= by_scenario["chat:64"]["total_s_median"]
    runs = httpx.get(f"{serve.url}/api/bench/runs?model={MODEL}&ok=1", timeout=60).json()
    cached = {run["scenario_id"]: run["cached_tokens"] for run in runs}
    assert cached["chat:64:warm"] > cached["chat:64"]
    chats = [run for run in runs if run["scenario_id"] == "chat:64"]
    assert {run["prefill_ms"] > 0 and run["decode_ms"] > 0 for run in chats} == {True}
    assert {run["swap_load_ms"] > 0 for run in runs if run["scenario_id"] == "load"} == {True}

    compared = bench(serve, "compare", "peer", "--metric", "decode_tps", "--format", "json")
    assert compared.returncode == 1, compared.stderr
    assert json.loads(compared.stdout)["regressed"] == 2
    comparison = httpx.get(f"{serve.url}/api/bench/compare?before=peer", timeout=60).json()
    assert comparison["regressed"] == 2
    for path in ("", "?before=peer@b1&after=peer@b2"):
        page = httpx.get(f"{serve.url}/bench/{path}", timeout=60)
        assert page.status_code == 200
        assert "data-regressed" in page.text


def test_a_job_of_the_page_sends_a_target_its_key(serve: Serve, tmp_path: Path) -> None:
    """The control has the variable, and no other process of the serve."""
    assert "PEER_API_KEY" in serve.find("control").environ()
    assert "PEER_API_KEY" not in serve.find("gateway").environ()
    script = Script(key=PEERS_KEY)
    with running_endpoint(script) as url, httpx.Client(base_url=serve.url, timeout=60) as client:
        file = tmp_path / "targets.toml"
        file.write_text(
            f'[[targets]]\nname = "peer"\nkind = "openai"\nendpoint = "{url}"\n'
            'api_key_env = "PEER_API_KEY"\n'
        )
        imported = bench(serve, "import", str(file))
        assert imported.returncode == 0, imported.stderr
        token = client.get("/login/").cookies["csrftoken"]
        words = {"username": "admin", "password": operators_password(serve)}
        client.post("/login/", data=words | {"csrfmiddlewaretoken": token})
        token = client.cookies["csrftoken"]
        asked = {"target": "peer", "samples": "1", "scenarios": "chat:128"}
        started = client.post("/bench/jobs/start", data=asked | {"csrfmiddlewaretoken": token})
        assert started.status_code == 302, started.text
        measured = "1 of 1 samples measured, 0 failed"
        wait_until(lambda: measured in client.get("/bench/jobs/").text, "the peer is measured")
    assert script.asked
