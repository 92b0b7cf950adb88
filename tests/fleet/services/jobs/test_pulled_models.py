"""What Ollama's pull asks of the fleet: the download, and the model that comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet import selectors, services, tasks
from fleet.models import CatalogueModel, Download
from inference.gateway.database import pull_cancel, pull_look, pull_offer, pull_start
from inference.wire.errors import InvalidRequestError, ModelNotFoundError
from inference.wire.ollama.models import PullRequest
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.services.jobs.download_reports import (
    SOURCE,
    beast,
    bytes_of,
    publish_report,
    state,
)

__all__ = ["beast", "publish_report"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_what_ollamas_pull_asks_of_the_fleet(beast, sent, publish_report) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source=SOURCE)
    started = pull_start(PullRequest(model="tiny"), COMMAND)
    download = Download.objects.get(source=SOURCE)
    assert (started.id, started.where, started.status) == (str(download.pk), "beast", "pending")
    publish_report(jobs=[state(download, "running", progress=bytes_of(1, 4))])
    tasks.record_heartbeats()
    seen = pull_look(started)
    assert (seen.status, seen.bytes_done, seen.bytes_total) == ("running", 1, 4)
    download.delete()
    assert pull_look(seen).status == "cancelled"
    with pytest.raises(ModelNotFoundError):
        pull_start(PullRequest(model="llama3"), COMMAND)
    with pytest.raises(InvalidRequestError, match="is not downloaded"):
        pull_start(PullRequest(source="path:/models/tiny.gguf"), COMMAND)


def test_a_pull_knows_whether_it_began_the_download_and_ends_it(beast, sent) -> None:
    request = PullRequest(source=SOURCE, called="hf.co/Qwen/Qwen3-0.6B")
    begun, joined = pull_start(request, COMMAND), pull_start(request, COMMAND)
    assert (begun.is_ours, joined.is_ours, begun.id) == (True, False, joined.id)
    pull_cancel(begun, COMMAND)
    download = Download.objects.get(pk=begun.id)
    assert download.cancel_wanted_at is not None
    Download.objects.filter(pk=begun.id).delete()
    pull_cancel(begun, COMMAND)


def test_what_was_pulled_is_a_model_by_the_name_that_its_client_has_for_it(beast, sent) -> None:
    called = "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0"
    source = "huggingface:Qwen/Qwen3-0.6B-GGUF"
    request = PullRequest(source=source, file="Q8_0", called=called)
    state = pull_start(request, COMMAND)
    assert not CatalogueModel.objects.exists(), "nothing is offered before it is here"
    state = replace(state, status="succeeded", bytes_total=2**30)
    for _ in range(2):
        pull_offer(request, state, COMMAND)
    entry = selectors.catalogue_find(called)
    assert entry is not None
    assert (entry.name, entry.source, entry.file) == ("qwen3-0.6b-q8_0", source, "Q8_0")
    assert entry.vram_mb == 1127
    created = AuditEntry.objects.filter(action__in=("model.create", "alias.create"))
    assert [entry.actor for entry in created] == 2 * [str(COMMAND)]
    other = PullRequest(source="huggingface:org/Qwen3-0.6B-Q8_0", called="hf.co/x--y/z")
    pull_offer(other, state, COMMAND)
    found = selectors.catalogue_find("qwen3-0.6b-q8_0-2")
    assert found is not None and found.aliases == (), "no alias can be called so"


def test_a_pull_of_what_the_operator_has_is_of_that(beast, sent) -> None:
    model = services.catalogue_model_create(actor=COMMAND, name="small", source=SOURCE)
    request = PullRequest(source=SOURCE, called=SOURCE)
    state = pull_start(request, COMMAND)
    pull_offer(request, state, COMMAND)
    entry = selectors.catalogue_find(SOURCE)
    assert entry is not None and entry.name == "small"
    model.enabled = False
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["enabled"])
    with pytest.raises(InvalidRequestError, match="does not offer it"):
        pull_offer(request, state, COMMAND)
    assert not CatalogueModel.objects.get().enabled
