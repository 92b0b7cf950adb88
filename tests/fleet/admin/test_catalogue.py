"""The admin's pages of models and aliases: forms, what they refuse and remark; models.toml, and
Hugging Face."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from fleet import selectors, services
from fleet.catalogue import SETTINGS
from fleet.models import Alias, CatalogueModel, LoadJob, Neuron
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.admin.admin_pages import FORM, act, page
from tests.fleet.hub.conftest import hub
from tests.metering.callers import staff

__all__ = ["hub"]
pytestmark = pytest.mark.django_db(transaction=True)


ADD = "/admin/fleet/cataloguemodel/add/"


@pytest.fixture
def change(admin_client: Client, model: CatalogueModel) -> Callable[..., str]:
    """Changes the model in its form; returns the page that follows."""

    def change(**changes: str) -> str:
        url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
        response = admin_client.post(url, FORM | changes, follow=True)
        assert response.redirect_chain
        model.refresh_from_db()
        return html.unescape(response.content.decode())

    return change


def test_adding_a_model(admin_client) -> None:
    answer = admin_client.get(ADD)
    assert "huggingface:org/name" in answer.content.decode()
    assert set(answer.context["adminform"].form.fields) == {"name", *SETTINGS}
    assert admin_client.post(ADD, FORM).status_code == 302
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.source == "pypi:tiny"
    audited = AuditEntry.objects.get()
    assert (audited.actor, audited.action) == ("user:admin", "model.create")


@pytest.fixture
def taken() -> CatalogueModel:
    taken = services.catalogue_model_create(actor=COMMAND, name="taken", source="pypi:taken")
    services.alias_create(actor=COMMAND, name="nick", model=taken)
    return taken


@each_case(
    ("changes", "message"),
    [
        ({"name": "Tiny Model"}, "is not a model name"),
        ({"name": ""}, "This field is required"),
        ({"source": "ftp://tiny"}, "does not start with one of huggingface:, path:, pypi:"),
        ({"max_context_tokens": "0"}, "greater than"),
        ({"input_price_micro_usd": "1"}, "A model that is priced has an output price"),
        ({"min_replicas": "2"}, "At most 1 and at least 2 replicas cannot both be"),
        ({"min_devices": "65"}, "65 is more than 64"),
        ({"device": "tpu"}, "not one of the available choices"),
        ({"pinned_on": "beast be/auty"}, "'be/auty' is not a neuron name"),
        ({"targets": "own\r\nbox/m"}, "There is no upstream named 'box'"),
        ({"input_price_micro_usd": "0.1234567", "output_price_micro_usd": "1"}, "6 decimal places"),
        ({"input_price_micro_usd": "-1", "output_price_micro_usd": "1"}, "greater than or equal"),
        ({"input_price_micro_usd": "NaN", "output_price_micro_usd": "1"}, "Enter a number"),
        ({"input_price_micro_usd": "1e9", "output_price_micro_usd": "1"}, "Ensure that there are"),
        ({"source": "llama3"}, "huggingface:Qwen/Qwen3-0.6B"),
        ({"name": "taken"}, "already"),
        ({"name": "nick"}, "is an alias already"),
    ],
)
def test_a_form_reports_what_is_wrong(
    admin_client, taken, changes: dict[str, str], message: str
) -> None:
    response = admin_client.post(ADD, FORM | changes)
    assert response.status_code == 200
    assert message in response.content.decode().replace("&#x27;", "'")
    assert CatalogueModel.objects.count() == 1


def test_changing_a_model_leaves_its_name(admin_client, model, change) -> None:
    for name in ("beast", "beauty"):
        services.neuron_expect(actor=COMMAND, neuron_name=name)
    changed = {"source": "pypi:other", "pinned": "on", "max_output_tokens": "128"}
    change(name="other", pinned_on="beast, beauty", **changed)
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.pinned_on == ("beast", "beauty")
    assert (entry.source, entry.pinned, entry.max_output_tokens) == ("pypi:other", True, 128)
    html = page(admin_client, "cataloguemodel", "change", model.pk)
    assert 'value="beast, beauty"' in html
    assert "pinned_on" in AuditEntry.objects.get(action="model.update").detail


def test_prices_are_written_and_shown_in_usd(admin_client, model, change) -> None:
    for _ in range(2):
        change(input_price_micro_usd="0.15", output_price_micro_usd="30")
        assert model.input_price_micro_usd == 150_000
        assert (model.output_price_micro_usd, model.cached_input_price_micro_usd) == (
            30 * 10**6,
            None,
        )
    html = page(admin_client, "cataloguemodel", "change", model.pk)
    assert 'value="0.15"' in html and 'value="30.00"' in html
    change()
    assert model.entry().prices is None


@each_case("from_its_page", [True, False])
def test_a_model_that_was_loaded_is_deleted_and_leaves_its_neuron(
    admin_client, beat, build, sent, from_its_page: bool
) -> None:
    tiny, idle = (
        services.catalogue_model_create(actor=COMMAND, name=name, source=f"pypi:{name}")
        for name in ("tiny", "idle")
    )
    beat(replicas=[])
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    services.alias_create(actor=COMMAND, name="nick", model=tiny)
    beat(replicas=[build.replica(job_id=str(job.pk), spec_digest=job.spec_digest)])

    def delete(model: CatalogueModel) -> str:
        if not from_its_page:
            return act(admin_client, "cataloguemodel", "delete_selected", model, post="yes")
        where = reverse("admin:fleet_cataloguemodel_delete", args=[model.pk])
        return str(admin_client.post(where, {"post": "yes"}, follow=True).content.decode())

    sent.tasks.clear()
    assert "It leaves the memory" not in delete(idle)
    assert "It leaves the memory of beast" in delete(tiny)
    assert not CatalogueModel.objects.exists() and not Alias.objects.exists()
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model"]
    assert LoadJob.objects.get(pk=job.pk).model_name == "tiny"
    beat(replicas=[])


def test_a_changed_context_reports_what_runs_by_the_old_one_and_how_to_reload(
    admin_client, model, beat, build, sent, change
) -> None:
    beat(replicas=[build.replica(spec_digest=model.entry().spec_digest())])
    assert "beast</a> (ready)" in page(admin_client, "cataloguemodel")
    same = {"description": "words", "max_prefill_s": "300"}
    assert "beast is outdated" not in change(**same)
    html = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Nothing of tiny is outdated" in html and not LoadJob.objects.exists()
    html = change(**same, max_context_tokens="512")
    assert "tiny on beast is outdated" in html and "Reload outdated models" in html
    assert "beast</a> (ready, outdated)" in page(admin_client, "cataloguemodel")
    html = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Reloading tiny on beast" in html
    assert LoadJob.objects.get().kind == "reload"


def test_a_pinned_model_that_is_kept_unloaded_shows_it(
    admin_client, model, beat, build, sent
) -> None:
    model.pinned = True
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["pinned"])
    beat(replicas=[build.replica()])
    services.model_unload_to_stay(actor=COMMAND, model_name="tiny", neuron_name="beast")
    beat(replicas=[])
    assert "beast</a> (kept unloaded)" in page(admin_client, "cataloguemodel")


def test_what_no_host_can_do_is_remarked(beat, change) -> None:
    beat()
    services.neuron_expect(actor=COMMAND, neuron_name="nobody")
    html = change(pinned_on="beast nobody", kv_memory_bytes=str(900 * 1024**3))
    assert "No neuron named nobody has joined yet" in html
    assert "900.0 GiB of KV memory is more than any device has (16.0 GiB)" in html
    html = change(min_device_vram_mb="48000")
    assert "No host can run tiny: it needs a card of 46.9 GiB or more" in html


@each_case(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "stays on beast until it is unloaded there, although its device is"),
        ({"pinned_on": "beauty"}, "moves from beast once it can be loaded on beauty"),
        ({"device": "cpu", "pinned_on": "beast"}, None),
    ],
)
def test_a_replica_where_it_would_not_be_loaded_now_is_remarked(
    beat, build, sent, change, changes: dict[str, str], message: str | None
) -> None:
    services.neuron_expect(actor=COMMAND, neuron_name="beauty")
    beat(replicas=[build.replica(devices=["cpu"])])
    html = change(**changes)
    assert ("from beast" in html or "on beast" in html) == (message is not None)
    assert message is None or message in html


def test_aliases_are_added_changed_and_refused(admin_client, model) -> None:
    add = reverse("admin:fleet_alias_add")
    assert admin_client.post(add, {"name": "gpt-4o", "model": model.pk}).status_code == 302
    refused = admin_client.post(add, {"name": "tiny", "model": model.pk})
    assert "There is a model named" in refused.content.decode()
    url = reverse("admin:fleet_alias_change", args=[Alias.objects.get().pk])
    assert admin_client.post(url, {"name": "gpt-5", "model": model.pk}).status_code == 302
    assert selectors.catalogue_find("gpt-5") is not None
    assert selectors.catalogue_find("gpt-4o") is None


def test_models_are_filtered_by_state_and_neuron(admin_client, beat, build) -> None:
    for name in ("ready", "mixed", "broken", "idle"):
        services.catalogue_model_create(actor=COMMAND, name=name, source=f"pypi:{name}")
    failed = ReplicaStatus.FAILED
    beat(
        replicas=[
            build.replica(model="ready"),
            build.replica(model="mixed"),
            build.replica(model="broken", status=failed),
        ]
    )
    beat("beauty", replicas=[build.replica(model="mixed", status=failed)])
    beauty = Neuron.objects.get(name="beauty").pk
    for query, names in (
        ("", {"ready", "mixed", "broken", "idle"}),
        ("?state=loaded", {"ready", "mixed"}),
        ("?state=failed", {"mixed", "broken"}),
        ("?state=unloaded", {"idle"}),
        (f"?replicas__neuron__id__exact={beauty}", {"mixed"}),
    ):
        shown = admin_client.get(f"/admin/fleet/cataloguemodel/{query}")
        assert {model.name for model in shown.context["cl"].result_list} == names, query


TEXT = "[[models]]\nid = 'tiny'\nsource = 'pypi:tiny'\nlimit.context = 512\n"


def url(name: str) -> str:
    return reverse(f"admin:fleet_cataloguemodel_{name}")


def shown(client: Client, name: str, /, **data: object) -> str:
    answer = client.post(url(name), data, follow=True) if data else client.get(url(name))
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def test_an_import_shows_its_difference_and_then_applies_it(admin_client: Client) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    page = shown(admin_client, "import", file=SimpleUploadedFile("m.toml", TEXT.encode()))
    assert 'limit.context = "none" -> 512' in page
    assert selectors.catalogue_state().models["tiny"].max_context_tokens is None
    (seen,) = re.findall(r'name="seen" value="(\w+)"', page)
    imported = shown(admin_client, "import", text=TEXT, seen=seen)
    assert "1 model and 0 aliases changed" in imported
    assert selectors.catalogue_state().models["tiny"].max_context_tokens == 512
    assert "Nothing would change" in shown(admin_client, "import", text=TEXT)
    exported = admin_client.get(url("export"))
    assert "limit = { context = 512 }" in exported.content.decode()


@each_case(
    ("given", "message"),
    [
        ({"text": TEXT, "seen": "0123456789abcdef"}, "The catalogue has changed meanwhile"),
        ({"prune": "on"}, "There is nothing to import"),
        ({"text": "[[models]]\nid = 'tiny'\ndevice = 'tpu'"}, "line 3, tiny, device: 'tpu'"),
        ({"file": SimpleUploadedFile("m.toml", b"\xff")}, "not text in UTF-8"),
    ],
)
def test_what_cannot_be_imported_is_reported(
    admin_client: Client, given: dict[str, Any], message: str
) -> None:
    assert message in shown(admin_client, "import", **given)
    assert selectors.catalogue_state().models == {}


def test_who_may_only_look_may_export() -> None:
    client = staff("viewer", "view_cataloguemodel")
    assert client.get(url("export")).status_code == 200
    for name in ("import", "hub"):
        assert client.get(url(name)).status_code == 403
    assert "Export models.toml" in shown(client, "changelist")
    assert "Import a models.toml" not in shown(client, "changelist")


@pytest.mark.usefixtures("hub")
def test_a_model_is_added_from_a_repository(admin_client: Client, publish) -> None:
    publish()
    answer = admin_client.get(url("hub"), {"repository": "org/tiny-gguf"})
    page = html.unescape(answer.content.decode())
    wrong = {"repository": "org/dense", "offer": "safetensors", "name": "A b"}
    assert "is not a model name" in shown(admin_client, "hub", **wrong)
    assert selectors.catalogue_state().models == {}
    assert "3.7 GiB in 1 file" in page and "beast: fits" in page and "beast: no room now" in page
    given = {"repository": "org/tiny-gguf", "offer": "Q4_K_M", "name": "tiny-q4_k_m"}
    assert "tiny-q4_k_m is in the catalogue" in shown(admin_client, "hub", **given)
    settings = selectors.catalogue_state().models["tiny-q4_k_m"]
    assert (settings.source, settings.file) == ("huggingface:org/tiny-gguf", "Q4_K_M")
    assert settings.vram_mb == 4197


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("device_gib", "expected"),
    [
        (16, "It is loaded when it is requested"),
        (2, "No host can run tiny-q4_k_m: it needs a card"),
    ],
)
def test_what_is_added_is_promised_only_where_a_host_can_run_it(
    admin_client: Client, beat, build, device_gib: int, expected: str
) -> None:
    beat(devices=[build.device(total_memory_bytes=device_gib * 1024**3, free_memory_bytes=1024**3)])
    given = {"repository": "org/tiny-gguf", "offer": "Q4_K_M", "name": "tiny-q4_k_m"}
    page = shown(admin_client, "hub", **given)
    assert f"tiny-q4_k_m is in the catalogue. {expected}" in page
    assert ("It is loaded when it is requested" in page) == expected.startswith("It is")


@pytest.mark.usefixtures("hub", "publish")
def test_searching_and_what_this_build_does_not_run(admin_client: Client, monkeypatch) -> None:
    def found(**words: str) -> str:
        return str(admin_client.get(url("hub"), words).content.decode())

    assert "?repository=org/tiny-gguf" in found(words="tiny")
    strange = found(repository="org/strange")
    assert "This build does not run it" in strange and "reformer" in strange
    gated = found(repository="org/gated")
    assert "needs a token that was granted access" in gated
    assert "This build does not run it" not in gated
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached from here" in found(repository="org/dense")
