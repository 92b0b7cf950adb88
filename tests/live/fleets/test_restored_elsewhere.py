"""A backup restored on another host: its gateway serves the files, the batches and the responses
that clients left on the first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.fleets.fleet import GB, Fleet, fleet_on_sqlite
from tests.live.serving import WAIT_TIMEOUT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

QUESTION, TEXT = "count for me", "0 1 2 3 "
MODEL = "amber"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on_sqlite(tmp_path) as fleet:
        fleet.add_control()
        fleet.add_gateway()
        fleet.add_neuron("ash", 20 * GB)
        for model in fleet.add_models({MODEL: 9 * GB}, pinned=MODEL):
            model.answers(QUESTION, TEXT)
        fleet.wait(lambda: fleet.ready(MODEL), "the model is loaded")
        yield fleet


def test_files_batches_and_responses_are_there(fleet: Fleet, tmp_path: Path) -> None:
    here = httpx.Client(base_url=fleet.gateway_urls[0], timeout=WAIT_TIMEOUT_S)
    response = body_of(here.post("/v1/responses", json={"model": MODEL, "input": QUESTION}))
    line = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]},
    }
    upload = {"file": ("batch.jsonl", json.dumps(line).encode())}
    file = body_of(here.post("/v1/files", files=upload, data={"purpose": "batch"}))
    made = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch_url = f"/v1/batches/{body_of(here.post('/v1/batches', json=made))['id']}"
    wait_until(
        lambda: body_of(here.get(batch_url))["status"] == "completed", "the batch is through"
    )
    paths = [
        batch_url,
        f"/v1/files/{file['id']}",
        f"/v1/files/{file['id']}/content",
        f"/v1/files/{body_of(here.get(batch_url))['output_file_id']}/content",
        f"/v1/responses/{response['id']}",
    ]
    before = [here.get(path) for path in paths]
    archive = tmp_path / "backup.tar.gz"
    assert "2 files of clients" in fleet.manage("backup", str(archive))

    for program in fleet.programs.values():
        program.end()
    elsewhere = {
        "DATABASE_URL": f"sqlite:///{tmp_path / 'there.sqlite3'}",
        "HELEXA_DATA_DIR": str(tmp_path / "there"),
    }
    fleet.environment |= elsewhere
    fleet.manage("restore", str(archive))
    there = httpx.Client(base_url=fleet.add_gateway(), timeout=WAIT_TIMEOUT_S)
    after = [there.get(path) for path in paths]
    assert [one.status_code for one in before] == [200] * len(paths)
    assert [one.content for one in after] == [one.content for one in before]
    continued = {"model": MODEL, "input": QUESTION, "previous_response_id": response["id"]}
    fleet.add_control()
    fleet.programs["ash"].start()
    fleet.wait(lambda: fleet.ready(MODEL), "the model is loaded")
    assert body_of(there.post("/v1/responses", json=continued))["status"] == "completed"


def body_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
