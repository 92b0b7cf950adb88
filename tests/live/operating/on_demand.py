"""A second model of the shared server, loaded by the first requests for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from tests.live.catalogue import add_model
from tests.live.serving import Abandoned, Serve, wait_until

NUM_OTHERS = 4
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n<tool_call>{name, arguments}</tool_call> of '"
    " + tools | tojson + '<|im_end|>\n' }}{% endif %}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


@dataclass(frozen=True, slots=True)
class LoadedOnDemand:
    name: str
    was_loaded_before: bool
    streamed: str
    """The text that was streamed to the first client who asked."""
    statuses_of_others: list[int | None]
    """The statuses of the clients who asked at the same time."""
    replicas: list[dict[str, Any]]
    """Afterwards."""


def load_on_demand(helexa: Serve, file: Path) -> LoadedOnDemand:
    name = add_model(helexa, file)
    was_loaded = helexa.replica(name) is not None
    # What an earlier test of this server broke has come back, too.
    wait_until(helexa.is_healthy, "healthy with a model that is not loaded")
    others = [Abandoned(helexa, model=name, max_tokens=4) for _ in range(NUM_OTHERS)]
    with helexa.stream(model=name) as stream:
        assert stream.response.status_code == 200
        *events, _done = list(stream)
    for other in others:
        other.wait()
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    return LoadedOnDemand(
        name=name,
        was_loaded_before=was_loaded,
        streamed="".join(delta.get("content") or "" for delta in deltas),
        statuses_of_others=[other.status for other in others],
        replicas=[
            replica
            for neuron in helexa.reported_neurons()
            for replica in neuron["replicas"]
            if replica["model"] == name
        ],
    )


def with_tools(default_gguf: Path, copy: Path) -> Path:
    """The same weights with a template that has a place for tools; it takes the old one's bytes."""
    old = gguf.GGUFReader(default_gguf).fields["tokenizer.chat_template"].contents().encode()
    padding = len(old) - len(TEMPLATE.encode()) - len("{##}")
    new = b"{#%b#}%b" % (b" " * padding, TEMPLATE.encode())
    data = default_gguf.read_bytes()
    assert data.count(old) == 1
    copy.write_bytes(data.replace(old, new))
    return copy
