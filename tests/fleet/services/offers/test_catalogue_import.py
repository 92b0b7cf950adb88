"""A models.toml becomes the catalogue, once; and what changed meanwhile stops it."""

from __future__ import annotations

import pytest

from fleet import selectors, services
from fleet.errors import CatalogueChangedError
from fleet.models import Alias, CatalogueModel
from fleet.models_toml import plan_import, read_document, write_document
from metering.actor import COMMAND
from metering.models import AuditEntry

pytestmark = pytest.mark.django_db

TEXT = """
[[models]]
id = "Org/Tiny"
harness = "candle"
pinned_on = ["beast"]

[[models]]
id = "other"
source = "pypi:other"
limit = { context = 512 }

[aliases]
nick = "Org/Tiny"
"""
DOCUMENT = read_document(TEXT)


@pytest.fixture(autouse=True)
def _known_host() -> None:
    services.neuron_expect(actor=COMMAND, neuron_name="beast")


def test_an_import_is_made_once() -> None:
    plan = services.catalogue_import(actor=COMMAND, document=DOCUMENT)
    assert not plan.is_empty
    state = selectors.catalogue_state()
    assert {model.name: model.settings for model in DOCUMENT.models} == state.models
    assert state.aliases == {"nick": "tiny", "Org/Tiny": "tiny"}
    num_audited = AuditEntry.objects.count()
    assert num_audited == 5, "the host, and four of the document"
    assert services.catalogue_import(actor=COMMAND, document=DOCUMENT).is_empty
    assert AuditEntry.objects.count() == num_audited


def test_what_differs_is_changed_and_what_is_not_named_stays_or_goes() -> None:
    services.catalogue_import(actor=COMMAND, document=DOCUMENT)
    changed = read_document("[[models]]\nid = 'other'\nsource = 'pypi:other'\npinned = true")
    services.catalogue_import(actor=COMMAND, document=changed)
    state = selectors.catalogue_state()
    assert state.models["other"].pinned and state.models["other"].max_context_tokens is None
    assert "tiny" in state.models and "nick" in state.aliases
    services.catalogue_import(actor=COMMAND, document=changed, prune=True)
    assert list(selectors.catalogue_state().models) == ["other"]
    assert not Alias.objects.exists()


def test_names_may_change_their_owner() -> None:
    services.catalogue_import(actor=COMMAND, document=DOCUMENT)
    swapped = "[[models]]\nid = 'nick'\nsource = 'pypi:a'\n[aliases]\ntiny = 'nick'\nother = 'nick'"
    services.catalogue_import(actor=COMMAND, document=read_document(swapped), prune=True)
    state = selectors.catalogue_state()
    assert list(state.models) == ["nick"]
    assert state.aliases == {"tiny": "nick", "other": "nick"}


def test_a_plan_that_is_no_longer_true_is_not_applied() -> None:
    seen = plan_import(DOCUMENT, selectors.catalogue_state(), prune=False).digest
    services.catalogue_model_create(actor=COMMAND, name="other", source="pypi:else")
    with pytest.raises(CatalogueChangedError):
        services.catalogue_import(actor=COMMAND, document=DOCUMENT, seen=seen)
    assert list(selectors.catalogue_state().models) == ["other"]


def test_what_is_exported_is_the_catalogue() -> None:
    services.catalogue_import(actor=COMMAND, document=DOCUMENT)
    CatalogueModel.objects.filter(name="other").update(enabled=False)
    state = selectors.catalogue_state()
    document = read_document(write_document(state))
    assert plan_import(document, state, prune=True).is_empty
    assert 'pinned_on = ["beast"]' in write_document(state)
