"""The admin's pages of models, aliases and upstreams, of models.toml and of Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from fleet import selectors, services
from fleet.catalogue import SETTINGS
from fleet.models import Alias, CatalogueModel, LoadJob
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.admin.admin_pages import FORM, act, page, sent, url
from tests.fleet.conftest import offer
from tests.metering.callers import staff

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def change(admin_client: Client, model: CatalogueModel) -> Callable[..., str]:
    """Changes the model in its form; returns the list, which follows with the remarks."""

    def change(**changes: str) -> str:
        text = sent(admin_client, "cataloguemodel", "change", model.pk, **FORM | changes)
        assert "Please correct" not in text
        model.refresh_from_db()
        return text

    return change


PRICED = {"output_price_micro_usd": "1"}


@each_case(
    ("changes", "message"),
    [
        ({"name": "Tiny Model"}, "is not a model name"),
        ({"name": ""}, "This field is required"),
        ({"name": "nick"}, "is an alias already"),
        ({"max_context_tokens": "0"}, "greater than"),
        ({"device": "tpu"}, "not one of the available choices"),
        ({"pinned_on": "beast be/auty"}, "'be/auty' is not a neuron name"),
        ({"targets": "own\r\nbox/m"}, "There is no upstream named 'box'"),
        ({"input_price_micro_usd": "1"}, "A model that is priced has an output price"),
        ({"input_price_micro_usd": "0.1234567", **PRICED}, "6 decimal places"),
        ({"input_price_micro_usd": "-1", **PRICED}, "greater than or equal"),
        ({"input_price_micro_usd": "1e9", **PRICED}, "Ensure that there are"),
    ],
)
def test_a_form_reports_what_is_wrong(admin_client, changes: dict[str, str], message: str) -> None:
    if not Alias.objects.exists():
        sent(admin_client, "alias", "add", name="nick", model=offer("taken").pk)
    assert message in sent(admin_client, "cataloguemodel", "add", **FORM | changes)
    assert CatalogueModel.objects.count() == 1


def test_a_changed_model_keeps_its_name_and_lists_and_money(admin_client, model, change) -> None:
    for name in ("beast", "beauty"):
        services.neuron_expect(actor=COMMAND, neuron_name=name)
    changed = {"source": "pypi:other", "pinned": "on", "max_output_tokens": "128"}
    prices = {"input_price_micro_usd": "0.15", "output_price_micro_usd": "30"}
    for _ in range(2):
        change(name="other", pinned_on="beast, beauty", **changed, **prices)
        entry = selectors.catalogue_find("tiny")
        assert entry is not None and entry.pinned_on == ("beast", "beauty")
        assert (entry.source, entry.pinned, entry.max_output_tokens) == ("pypi:other", True, 128)
        assert (model.input_price_micro_usd, model.output_price_micro_usd) == (150_000, 30 * 10**6)
        assert model.cached_input_price_micro_usd is None
    text = page(admin_client, "cataloguemodel", "change", model.pk)
    for words in ('value="beast, beauty"', 'value="0.15"', 'value="30.00"'):
        assert words in text
    entry = AuditEntry.objects.get(action="model.update")  # the second time nothing changed
    assert set(entry.detail) == {*changed, *prices, "pinned_on"}
    change()
    assert model.entry().prices is None
    added = admin_client.get(url("cataloguemodel", "add"))
    assert set(added.context["adminform"].form.fields) == {"name", *SETTINGS}


@pytest.mark.parametrize("from_its_page", [True, False])
def test_a_deleted_model_leaves_its_neuron(admin_client, beat, build, sent, from_its_page) -> None:
    tiny, idle = offer("tiny"), offer("idle")
    beat(replicas=[build.replica()])
    services.alias_create(actor=COMMAND, name="nick", model=tiny)
    for model, leaves in ((idle, False), (tiny, True)):
        if from_its_page:
            where = url("cataloguemodel", "delete", model.pk)
            text = admin_client.post(where, {"post": "yes"}, follow=True).text
        else:
            text = act(admin_client, "cataloguemodel", "delete_selected", model, post="yes")
        assert ("It leaves the memory of beast" in text) == leaves
    assert not CatalogueModel.objects.exists() and not Alias.objects.exists()
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model"]


def test_the_outdated_are_shown_and_reloaded(
    admin_client, model, beat, build, sent, change
) -> None:
    beat(replicas=[build.replica(spec_digest=model.entry().spec_digest())])
    assert "beast</a> (ready)" in page(admin_client, "cataloguemodel")
    same = {"description": "words", "max_prefill_s": "300"}
    assert "beast is outdated" not in change(**same)
    text = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Nothing of tiny is outdated" in text and not LoadJob.objects.exists()
    text = change(**same, max_context_tokens="512")
    assert "tiny on beast is outdated" in text and "Reload outdated models" in text
    assert "beast</a> (ready, outdated)" in page(admin_client, "cataloguemodel")
    text = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Reloading tiny on beast" in text
    assert LoadJob.objects.get().kind == "reload"


def test_what_follows_from_a_change_is_remarked(model, beat, build, change) -> None:
    sql = {"name": "tiny-sql", "source": "huggingface:org/sql", "base": "tiny"}
    services.catalogue_model_create(actor=COMMAND, **sql)
    services.neuron_expect(actor=COMMAND, neuron_name="beauty")
    for changes, message in (
        ({"pinned_on": "beauty"}, "tiny moves from beast once it can be loaded on beauty"),
        ({"pinned_on": "beast"}, ""),
        ({"enabled": ""}, "Its adapters are not offered either: tiny-sql"),
        ({"min_device_vram_mb": "48000"}, "No host can run tiny: it needs a card of 46.9 GiB"),
    ):
        digest = CatalogueModel.objects.get(name="tiny").entry().spec_digest()
        is_loaded = "No host" not in message
        beat(replicas=[build.replica(spec_digest=digest)] if is_loaded else [])
        text = change(**changes)
        assert message in text
        assert message or not re.search("moves from|not offered|No host", text)


TEXT = "[[models]]\nid = 'tiny'\nsource = 'pypi:tiny'\nlimit.context = 512\n"


def imported(client: Client, **given: Any) -> str:
    return sent(client, "cataloguemodel", "import", **given)


def test_an_import_shows_its_difference_and_then_applies_it(admin_client) -> None:
    offer("tiny")
    text = imported(admin_client, file=SimpleUploadedFile("m.toml", TEXT.encode()))
    assert 'limit.context = "none" -> 512' in text and 'name="prune" value' not in text
    assert selectors.catalogue_state().models["tiny"].max_context_tokens is None
    (seen,) = re.findall(r'name="seen" value="(\w+)"', text)
    assert "1 model and 0 aliases changed" in imported(admin_client, text=TEXT, seen=seen)
    assert selectors.catalogue_state().models["tiny"].max_context_tokens == 512
    assert "Nothing would change" in imported(admin_client, text=TEXT)
    assert "limit = { context = 512 }" in page(admin_client, "cataloguemodel", "export")


@each_case(
    ("given", "message"),
    [
        ({"text": TEXT, "seen": "0123456789abcdef"}, "The catalogue has changed meanwhile"),
        ({"prune": "on"}, "There is nothing to import"),
        ({"text": "[[models]]\nid = 'tiny'\ndevice = 'tpu'"}, "line 3, tiny, device: 'tpu'"),
        ({"file": SimpleUploadedFile("m.toml", b"\xff")}, "not text in UTF-8"),
        ({"file": SimpleUploadedFile("m.toml", b"#" * 1_000_001)}, "More than 1,000,000 bytes"),
    ],
)
def test_what_cannot_be_imported_is_reported(admin_client, given, message) -> None:
    assert message in imported(admin_client, **given)
    assert selectors.catalogue_state().models == {}


def test_who_may_only_look_may_export_and_who_may_not_delete_may_not_prune() -> None:
    client = staff("viewer", "view_cataloguemodel")
    assert client.get(url("cataloguemodel", "export")).status_code == 200
    for name in ("import", "hub"):
        assert client.get(url("cataloguemodel", name)).status_code == 403
    text = page(client, "cataloguemodel")
    assert "Export models.toml" in text and "Import a models.toml" not in text
    client = staff("adder", "add_cataloguemodel", "change_cataloguemodel")
    assert client.get(url("cataloguemodel", "export")).status_code == 200  # change implies view
    pruning = client.post(url("cataloguemodel", "import"), {"text": TEXT, "prune": "on"})
    assert pruning.status_code == 403
    assert staff("maker", "add_alias").get(url("cataloguemodel", "export")).status_code == 403


GGUF = {"repository": "org/tiny-gguf", "offer": "Q4_K_M", "name": "tiny-q4_k_m"}


def added(client: Client, **given: str) -> str:
    return sent(client, "cataloguemodel", "hub", **given)


@pytest.mark.usefixtures("hub", "sent")
def test_a_model_is_added_from_a_repository(admin_client, publish, beat, build) -> None:
    unknown = page(admin_client, "cataloguemodel", "hub", repository="org/tiny-gguf")
    assert "No neuron is online" in unknown
    publish()
    text = page(admin_client, "cataloguemodel", "hub", repository="org/tiny-gguf")
    assert "3.7 GiB in 1 file" in text and "beast: fits" in text and "beast: no room now" in text
    wrong = {"repository": "org/dense", "offer": "safetensors", "name": "A b"}
    assert "is not a model name" in added(admin_client, **wrong)
    gone = {"repository": "org/tiny-gguf", "offer": "Q9", "name": "tiny"}
    assert "org/tiny-gguf no longer has Q9" in added(admin_client, **gone)
    assert selectors.catalogue_state().models == {}
    assert "tiny-q4_k_m is in the catalogue" in added(admin_client, **GGUF)
    settings = selectors.catalogue_state().models["tiny-q4_k_m"]
    assert (settings.source, settings.file) == ("huggingface:org/tiny-gguf", "Q4_K_M")
    assert settings.vram_mb == 4197
    loaded = added(admin_client, **GGUF | {"name": "second", "load": "yes"})
    assert "second is in the catalogue" in loaded and "No neuron named 'beast' has" in loaded
    for gib, name, promise in ((16, "a", "It is loaded when it is"), (2, "b", "No host can run b")):
        sizes = {"total_memory_bytes": gib * 1024**3, "free_memory_bytes": 1024**3}
        beat(devices=[build.device(**sizes)])
        text = added(admin_client, **GGUF | {"name": name})
        assert f"{name} is in the catalogue. {promise}" in text
    for repository, words in (("strange", "reformer"), ("gated", "that was granted access")):
        assert words in page(admin_client, "cataloguemodel", "hub", repository=f"org/{repository}")
    found = page(admin_client, "cataloguemodel", "hub", words="tiny")
    assert "?repository=org/tiny-gguf" in found
