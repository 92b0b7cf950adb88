"""A model's ordered targets as a setting: by REST, command, admin and file, and their rules."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from fleet import selectors, services
from fleet.catalogue.targets import UpstreamModel, When
from fleet.errors import CatalogueValueError, UpstreamInUseError, UpstreamValueError
from fleet.models import CatalogueModel, Upstream
from fleet.models_toml import plan_import, read_document, write_document
from fleet.models_toml.reading import ModelsTomlError
from metering.actor import COMMAND
from tests.fleet.api.api_support import key_api, need_keys

pytestmark = pytest.mark.django_db(transaction=True)

TARGETS = ("own when ready", "box/org/m:7b when queue_longer_than 4 weight 2", "own")


@pytest.fixture
def box() -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")


@pytest.fixture
def cloud() -> Upstream:
    return services.upstream_create(
        actor=COMMAND, name="cloud", url="http://cloud/v1", leaves_network=True
    )


def change(model: CatalogueModel, **values: Any) -> None:
    model.assign(values)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(values))


def refused(model: CatalogueModel, **values: Any) -> tuple[str, str]:
    """The field that cannot hold its value, and why."""
    with pytest.raises(CatalogueValueError) as caught:
        change(selectors.model_known(model.name), **values)
    return caught.value.field, str(caught.value)


def test_the_gateways_entry_has_targets_and_their_upstreams(
    box: Upstream, model: CatalogueModel
) -> None:
    change(model, targets=TARGETS)
    entry = selectors.catalogue_find(model.name)
    assert entry is not None
    first, second, third = entry.ordered_targets
    assert (first.is_own, first.when, third.when) == (True, When.READY, When.ALWAYS)
    assert second.upstream_model == UpstreamModel("box", "org/m:7b")
    assert (second.limit, second.weight) == (4, 2)
    assert (entry.upstream, entry.upstream_named("box")) == (None, box.entry())
    assert entry.spec_digest() == model.entry().spec_digest()
    change(model, targets=())
    entry = selectors.catalogue_find(model.name)
    assert entry is not None
    assert [one.name for one in entry.ordered_targets] == ["own"]


@pytest.mark.usefixtures("box")
def test_a_source_is_one_of_the_targets(model: CatalogueModel) -> None:
    assert refused(model, targets=("box/m",)) == (
        "targets",
        "Its source is none of its targets: add own, or leave them empty",
    )
    far = services.catalogue_model_create(actor=COMMAND, name="far", source="upstream:box/m")
    assert "it has no target own" in refused(far, targets=("box/m", "own"))[1]
    assert "add box/m" in refused(far, targets=("box/n",))[1]
    change(far, targets=("box/n when ready", "box/m"))
    assert refused(model, targets=("own", "away/m"))[1] == "There is no upstream named 'away'"
    adapter = services.catalogue_model_create(
        actor=COMMAND, name="tuned", source="path:/a", base=model.name
    )
    assert refused(adapter, targets=("own", "box/m"))[0] == "targets"
    services.upstream_create(actor=COMMAND, name="claude", url="http://x", dialect="anthropic")
    for name, value in (("repetition_penalty", 1.1), ("temperature", 1.5)):
        field, problem = refused(far, targets=("box/m", "claude/m"), **{name: value})
        assert field == name
        assert "dialect anthropic" in problem
    change(far, targets=("claude/m", "box/m"), repetition_penalty=1.0, temperature=0.5)
    change(far, targets=("box/m",), min_p=0.1)
    box = selectors.upstream_known("box")
    box.dialect = "anthropic"
    with pytest.raises(UpstreamValueError, match="far, whose min_p is not translated"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["dialect"])


def test_defaults_of_own_replicas_hinder_no_target(box: Upstream, model: CatalogueModel) -> None:
    defaults = {"repetition_window": 64, "min_p": 0.1, "temperature": 1.5}
    change(model, targets=("own", "box/m"), **defaults)
    box.dialect = "anthropic"
    services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["dialect"])
    change(model, repetition_window=32)


@pytest.mark.usefixtures("cloud")
def test_targets_outside_need_a_model_that_may_leave(box: Upstream, model: CatalogueModel) -> None:
    assert refused(model, targets=("own", "cloud/m"))[0] == "may_leave_network"
    change(model, targets=("own", "cloud/m", "box/m"), may_leave_network=True)
    assert refused(model, may_leave_network=False)[0] == "may_leave_network"
    assert refused(model, targets=())[0] == "may_leave_network"
    change(model, targets=("own", "box/m"), may_leave_network=False)
    box.leaves_network = True
    with pytest.raises(UpstreamValueError, match=f"{model.name} may not leave"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["leaves_network"])
    with pytest.raises(UpstreamInUseError, match=f"serves {model.name}"):
        services.upstream_delete(actor=COMMAND, upstream=box)


@pytest.mark.usefixtures("box")
def test_rest_commands_and_the_admin_set_them(
    model: CatalogueModel, settings: Any, admin_client: Any
) -> None:
    path = f"catalogue/{model.name}"
    written = "targets=own, box/m when ready"
    call_command("models", "change", model.name, "--set", written, stdout=StringIO())
    assert selectors.model_known(model.name).settings().targets == ("own", "box/m when ready")
    page = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    assert "own\nbox/m when ready</textarea>" in admin_client.get(page).content.decode()
    need_keys(settings)
    api = key_api("fleet:read", "fleet:write")
    assert api.get(path)["targets"] == ["own", "box/m when ready"]
    assert api.patch(path, {"targets": list(TARGETS)})["targets"] == list(TARGETS)
    problem = api.patch(path, {"targets": ["own", "box"]}, 400)
    assert problem["param"] == "targets"
    assert "neither own nor" in problem["detail"]
    assert api.patch(path, {"targets": "own"}, 400)["param"] == "targets"
    assert api.patch(path, {"targets": []})["targets"] == []


FILE = """
[[upstreams]]
name = "box"
url = "http://box:8000/v1"

[[models]]
id = "tiny"
source = "path:/models/tiny"
targets = ["own when ready", "box/m when waiting_longer_than 5"]
"""


def test_a_file_has_them() -> None:
    lines = list(services.catalogue_import(actor=COMMAND, document=read_document(FILE)).lines())
    assert '    targets = ["own when ready", "box/m when waiting_longer_than 5"]' in lines
    written = write_document(selectors.catalogue_state())
    assert plan_import(read_document(written), selectors.catalogue_state(), prune=True).is_empty
    for text, problem in (
        (FILE.replace('"box"', '"other"'), "There is no upstream 'box'"),
        (FILE.replace("own when ready", "own when busy"), "a condition is one of"),
        (FILE.replace("own when ready", "box/n"), "add own, or leave them empty"),
    ):
        with pytest.raises(ModelsTomlError, match=problem):
            services.catalogue_import(actor=COMMAND, document=read_document(text), prune=True)
