"""A killed neuron and a killed Redis under ``serve``: the open request fails once, and both come
back. The test server of every change kills an engine (``test_one_serve``)."""

from __future__ import annotations

import pytest

from tests.live.serving import LONG, Serve, is_named, wait_until
from tests.processes import has_ended


@pytest.mark.parametrize("name", ["neuron", "redis"])
def test_what_is_killed_fails_the_request_once_and_comes_back(helexa: Serve, name: str) -> None:
    assert helexa.answers(), "the model is loaded"
    engines = [one for one in helexa.processes() if is_named(one, "engine")]
    with helexa.stream(**LONG) as stream:
        stream.next_text()
        killed = helexa.kill(name)
        events = list(stream)
    assert len([event for event in events if '"error"' in event]) == 1
    helexa.wait_printed(f"^{name}.*SIGKILL")
    if name == "neuron":
        wait_until(lambda: all(map(has_ended, engines)), "its engines ended with it")
    wait_until(helexa.answers, f"answers after its {name} was killed")
    assert helexa.find(name).pid != killed.pid
