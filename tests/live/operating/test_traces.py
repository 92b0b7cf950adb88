"""The trace of a real answer, through every process."""

from __future__ import annotations

import itertools
import subprocess
import sys
import uuid
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.ports import free_port
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, chat_body, wait_until
from tests.servers.collector import Collector

STAGES = ["neuron prepare", "engine queue", "engine prefill", "engine decode"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def gateway_url(helexa: Serve, collector: Collector) -> Iterator[str]:
    """A second gateway, under uvicorn, which sends its traces. It shares the first one's Redis and
    database."""
    port = free_port()
    environment = helexa.find("gateway").environ() | {
        "HELEXA_LISTEN_HOST": "127.0.0.1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    application = ("-m", "uvicorn", "helexa_site.asgi:application", "--log-level", "warning")
    process = subprocess.Popen(
        [sys.executable, *application, "--port", str(port)], cwd=REPOSITORY_DIR, env=environment
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: httpx.get(f"{url}/health", timeout=30.0).status_code == 200, "up")
        yield url
    finally:
        process.terminate()
        process.wait(WAIT_TIMEOUT_S)


def test_an_answer_is_one_trace_down_to_the_engines_stages(
    collector: Collector, gateway_url: str
) -> None:
    """It is one also where a stop string ends the answer, which the engine brings to no end."""
    for fields in ({"stream": True}, {"stop": ["Paris"]}):
        trace_id, client = uuid.uuid4().hex, "00f067aa0ba902b7"
        answer = httpx.post(
            f"{gateway_url}/v1/chat/completions",
            json=chat_body(**fields),
            headers={"traceparent": f"00-{trace_id}-{client}-01"},
            timeout=WAIT_TIMEOUT_S,
        )
        assert answer.status_code == 200
        request, placement, attempt, *stages = collector.wait_for(trace_id, 7)
        assert request.parent_id == client
        assert {placement.parent_id, attempt.parent_id} == {request.span_id}
        assert [stage.name for stage in stages] == STAGES
        assert {stage.parent_id for stage in stages} == {attempt.span_id}
        assert attempt.start_ns <= stages[0].start_ns
        assert stages[-1].end_ns <= attempt.end_ns <= request.end_ns
        for before, after in itertools.pairwise(stages):
            assert abs(after.start_ns - before.end_ns) <= 1
        assert all(stage.end_ns > stage.start_ns for stage in stages)
        assert request.attributes["helexa.request_id"] == answer.headers["x-request-id"]
