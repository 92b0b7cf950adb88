"""Responses that are kept, through the openai SDK: continued, read back, made in the background."""

from __future__ import annotations

import openai
import pytest
from openai.types.responses import Response

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import Respond
from tests.live.serving import wait_until


def test_a_conversation_by_previous_response_id(respond: Respond, hermes: ScriptedModel) -> None:
    """Instructions are not carried over; everything else is."""
    hermes.answers("my name is Ada", "Hello, Ada.")
    hermes.answers("what is my name", "Ada.")
    first = respond("my name is Ada", instructions="Speak like a pirate.")
    second = respond("what is my name", previous_response_id=first.id)
    assert second.output_text == "Ada."
    assert second.previous_response_id == first.id
    prompt = hermes.received("what is my name")[-1].prompt
    assert "my name is Ada" in prompt
    assert "Hello, Ada." in prompt
    assert "pirate" not in prompt


def test_stored_until_deleted(
    respond: Respond, openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    hermes.answers("keep this", "Kept.")
    given = [{"role": "user", "content": "keep this"}]
    made = respond(given)
    kept = openai_client.responses.retrieve(made.id)
    assert kept.output_text == "Kept."
    assert kept.to_dict() == made.to_dict()
    (item,) = list(openai_client.responses.input_items.list(made.id))
    assert item.type == "message"
    openai_client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(made.id)
    with pytest.raises(openai.APIStatusError) as refusal:
        respond("continue", previous_response_id=made.id)
    assert refusal.value.status_code in (400, 404)


def test_not_stored_when_asked(
    respond: Respond, openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    hermes.answers("forget this", "Forgotten.")
    made = respond("forget this", store=False)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(made.id)


def completed(client: openai.OpenAI, response_id: str) -> Response:
    """The response, once it is."""
    retrieve = client.responses.retrieve
    wait_until(lambda: retrieve(response_id).status == "completed", "the response completes")
    return retrieve(response_id)


def test_in_the_background(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    hermes.answers("take your time", "Done.")
    made = openai_client.responses.create(model="hermes", input="take your time", background=True)
    assert made.status in ("queued", "in_progress", "completed")
    assert made.background is True

    assert completed(openai_client, made.id).output_text == "Done."


def test_background_work_outlives_its_stream(
    openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    hermes.answers("continue without me", "and on" * 100)
    with openai_client.responses.create(
        model="hermes", input="continue without me", background=True, stream=True
    ) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"

    assert completed(openai_client, first.response.id).output_text == "and on" * 100


def test_background_work_is_cancelled(
    openai_client: openai.OpenAI, hermes: ScriptedModel, scripted_server: ScriptedServe
) -> None:
    """What it held is free again afterwards."""
    hermes.answers("count for ever", "on and on ", repeats=True)
    made = openai_client.responses.create(model="hermes", input="count for ever", background=True)

    def in_flight() -> int | None:
        """``None`` while the neuron's heartbeat is late."""
        replica = scripted_server.replica("hermes")
        return None if replica is None else int(replica["in_flight"])

    wait_until(in_flight, "it runs")
    cancelled = openai_client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    wait_until(lambda: in_flight() == 0, "it is gone")
    assert openai_client.responses.retrieve(made.id).status == "cancelled"
