"""The models command: add to remove, chosen of a repository, searched, exported; the same words
with this machine's database and over REST."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command

from fleet import services
from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.models import CatalogueModel
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.commands.conftest import RunCommand
from tests.fleet.hub.conftest import hub

__all__ = ["hub"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_model_from_add_to_remove(run_command: RunCommand, beat, build, sent) -> None:
    beat()
    written = ("max_context_tokens=64", "pinned_on=beast", "quantization=q5k")
    settings = [f"--set={setting}" for setting in written]
    run_command("models", "add", "tiny", "pypi:tiny", *settings)
    model = CatalogueModel.objects.get()
    assert (model.max_context_tokens, model.pinned_on) == (64, ["beast"])
    assert model.quantization == "q5"
    assert "unloaded" in run_command("models", "list")
    run_command("models", "load", "tiny", "--no-wait")
    assert "load tiny on beast: pending" in run_command.out
    beat(replicas=[build.replica()])
    (listed,) = json.loads(run_command("models", "list", "--json"))
    assert listed["replicas"] == [{"neuron": "beast", "status": "ready", "is_outdated": False}]
    shown = run_command("models", "show", "tiny")
    assert "max_context_tokens" in shown and "beast" in shown
    assert "unload tiny on beast" in run_command("models", "unload", "tiny", "--no-wait")
    run_command("models", "change", "tiny", "--set", "max_context_tokens=32", "--set", "pinned_on=")
    model.refresh_from_db()
    assert (model.max_context_tokens, model.pinned_on) == (32, [])
    assert "would model.delete tiny" in run_command("models", "remove", "tiny", "--dry-run")
    assert json.loads(run_command("models", "list", "--pinned", "true", "--json")) == []
    run_command("models", "remove", "tiny")
    assert not CatalogueModel.objects.exists()
    actors = {str(actor).partition(":")[0] for (actor,) in AuditEntry.objects.values_list("actor")}
    assert actors <= {"command", "key"}


def test_an_empty_value_leaves_a_setting_open_or_sets_its_default() -> None:
    call_command(
        "models", "add", "tiny", "pypi:tiny", "--set", "device=cpu", "--set", "min_replicas=1"
    )
    call_command("models", "change", "tiny", "--set", "enabled=false", "--set", "max_prefill_s=60")
    empty = [f"--set={name}=" for name in SETTINGS if name != "source"]
    call_command("models", "change", "tiny", *empty)
    settings = CatalogueModel.objects.get().settings()
    unset = {name: getattr(settings, name) for name in DEFAULTS}
    assert unset == DEFAULTS | {"max_prefill_s": None}
    with pytest.raises(CommandError, match="This is needed"):
        call_command("models", "change", "tiny", "--set", "source=")


@pytest.mark.usefixtures("hub")
def test_a_model_is_chosen_of_what_a_repository_holds(
    run_command: RunCommand, beat, monkeypatch
) -> None:
    beat()
    assert "org/tiny-gguf" in run_command("models", "search", "tiny")
    assert "Nothing is called" in run_command("models", "search", "no such thing")
    with pytest.raises(CommandError) as refused:
        run_command("models", "add", "huggingface:org/tiny-gguf")
    for words in ("Choose one with --file", "Q4_K_M", "3.7 GiB", "beast: fits", "no room now"):
        assert words in str(refused.value)
    assert not CatalogueModel.objects.exists()
    run_command("models", "add", "huggingface:org/tiny-gguf", "--file", "q8_0", "--pinned")
    first = CatalogueModel.objects.get()
    assert (first.name, first.file, first.pinned) == ("tiny-q8_0", "Q8_0", True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "1")
    assert "tiny-q4_k_m is offered" in run_command("models", "add", "huggingface:org/tiny-gguf")
    assert "Q8_0" in run_command.err
    assert CatalogueModel.objects.get(name="tiny-q4_k_m").vram_mb == 4197
    assert "dense is offered" in run_command("models", "add", "org/dense")
    run_command("models", "add", "again", "org/dense")
    assert CatalogueModel.objects.get(name="again").source == "huggingface:org/dense"


@pytest.mark.usefixtures("hub")
def test_a_model_is_added_with_or_without_its_mmproj_file(run_command: RunCommand, beat) -> None:
    beat()
    source = "huggingface:org/images-gguf"
    with pytest.raises(CommandError, match=r"mmproj-F16.gguf is not there: choose one of Q4_K_M"):
        run_command("models", "add", source, "--file", "mmproj-F16.gguf")
    for file in ("q4_k_m+none", "Q8_0"):
        run_command("models", "add", source, "--file", file)
    found = {model.name: (model.file, model.vram_mb) for model in CatalogueModel.objects.all()}
    assert found == {"images-q4_k_m": ("Q4_K_M+none", 4197), "images-q8_0": ("Q8_0", 9442)}


@pytest.mark.usefixtures("hub", "publish")
def test_what_cannot_be_chosen_names_the_reason(run_command: RunCommand) -> None:
    for words, reason in (
        ("huggingface:org/strange", "does not run safetensors: .*reformer"),
        ("huggingface:org/tiny-gguf --file Q2_K", "choose one of Q4_K_M, Q8_0"),
        ("huggingface:org/nothing", "no repository org/nothing"),
        ("huggingface:org/gated", "^org/gated is gated: it needs a token that was granted"),
        ("huggingface:tiny-gguf", "not like huggingface:org/name"),
        ("huggingface:org/images-gguf", "reads images by mmproj-F16"),
        ("tiny", "name its source too"),
        ("huggingface:org/tiny-gguf --base tiny", "an adapter is given a name"),
    ):
        with pytest.raises(CommandError, match=reason):
            run_command("models", "add", *words.split())


def test_the_catalogue_is_exported_and_imported(run_command: RunCommand, tmp_path) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    file = tmp_path / "models.toml"
    file.write_text(run_command("models", "export").replace("pypi:tiny", "pypi:other"))
    assert "Nothing is changed yet" in run_command("models", "import", str(file))
    assert CatalogueModel.objects.get().source == "pypi:tiny"
    run_command("models", "import", str(file), "--apply")
    assert CatalogueModel.objects.get().source == "pypi:other"
    assert "Nothing to change" in run_command("models", "import", str(file))
