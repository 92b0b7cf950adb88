"""The admin's pages beside the catalogue: models.toml, and Hugging Face."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from fleet import selectors, services
from metering.actor import COMMAND
from tests.fleet.hub.conftest import hub

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["hub"]
TEXT = "[[models]]\nid = 'tiny'\nsource = 'pypi:tiny'\nlimit.context = 512\n"


def url(name: str) -> str:
    return reverse(f"admin:fleet_cataloguemodel_{name}")


def shown(client: Client, name: str, /, **data: object) -> str:
    answer = client.post(url(name), data, follow=True) if data else client.get(url(name))
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_an_import_shows_its_difference_and_then_applies_it(
    admin_client: Client, is_uploaded: bool
) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    given = {"file": SimpleUploadedFile("m.toml", TEXT.encode())} if is_uploaded else {"text": TEXT}
    page = shown(admin_client, "import", **given)
    assert 'limit.context = "none" -> 512' in page
    assert selectors.catalogue_state().models["tiny"].max_context_tokens is None
    (seen,) = re.findall(r'name="seen" value="(\w+)"', page)
    imported = shown(admin_client, "import", text=TEXT, seen=seen)
    assert "1 model and 0 aliases changed" in imported
    assert selectors.catalogue_state().models["tiny"].max_context_tokens == 512
    assert "Nothing would change" in shown(admin_client, "import", text=TEXT)
    exported = admin_client.get(url("export"))
    assert "limit = { context = 512 }" in exported.content.decode()


def test_what_has_changed_since_it_was_seen_is_not_applied(admin_client: Client) -> None:
    page = shown(admin_client, "import", text=TEXT, seen="0123456789abcdef")
    assert "The catalogue has changed meanwhile" in page
    assert selectors.catalogue_state().models == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prune": "on"}, "There is nothing to import"),
        ({"text": "[[models]]\nid = 'tiny'\ndevice = 'tpu'"}, "line 3, tiny, device: 'tpu'"),
        ({"file": SimpleUploadedFile("m.toml", b"\xff")}, "not text in UTF-8"),
    ],
)
def test_what_cannot_be_imported_is_reported(
    admin_client: Client, given: dict, message: str
) -> None:
    assert message in shown(admin_client, "import", **given)


def test_who_may_only_look_may_export(client: Client, django_user_model) -> None:
    viewer = django_user_model.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_cataloguemodel"))
    client.force_login(viewer)
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


@pytest.mark.usefixtures("hub")
def test_a_name_that_is_none_adds_nothing(admin_client: Client) -> None:
    given = {"repository": "org/dense", "offer": "safetensors", "name": "A b"}
    assert "is not a model name" in shown(admin_client, "hub", **given)
    assert selectors.catalogue_state().models == {}


@pytest.mark.usefixtures("hub", "publish")
def test_searching_and_what_this_build_does_not_run(admin_client: Client) -> None:
    found = admin_client.get(url("hub"), {"words": "tiny"}).content.decode()
    assert "?repository=org/tiny-gguf" in found
    strange = admin_client.get(url("hub"), {"repository": "org/strange"}).content.decode()
    assert "This build does not run it" in strange and "reformer" in strange
    gated = admin_client.get(url("hub"), {"repository": "org/gated"}).content.decode()
    assert "needs a token that was granted access" in gated
    assert "This build does not run it" not in gated


def test_a_hub_out_of_reach_is_reported(admin_client: Client, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    page = admin_client.get(url("hub"), {"repository": "org/dense"}).content.decode()
    assert "cannot be reached from here" in page
