"""The trace of a real answer, through every process."""

from __future__ import annotations

import itertools
import uuid

import httpx

from tests.live.operating.second_gateway import second_gateway
from tests.live.serving import WAIT_TIMEOUT_S, Serve, chat_body
from tests.servers.collector import Collector

STAGES = ["neuron prepare", "engine queue", "engine prefill", "engine decode"]


def test_an_answer_is_one_trace_down_to_the_engines_stages(helexa: Serve) -> None:
    """It is one also where a stop string ends the answer, which the engine brings to no end."""
    with Collector() as collector:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        with second_gateway(helexa, **settings) as url:
            for fields in ({"stream": True}, {"stop": ["Paris"]}):
                trace_id, client = uuid.uuid4().hex, "00f067aa0ba902b7"
                answer = httpx.post(
                    f"{url}/v1/chat/completions",
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
