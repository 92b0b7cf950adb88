"""Every change names its actor: every public service takes one, or is listed here with
the reason why not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from metering.actor import Actor
from tests.cases import each_case

PACKAGES = ("fleet.services", "metering.services", "inference.conversations.services")
WITHOUT_AN_ACTOR = {
    # They read.
    "fleet.services.offers.catalogue.alias_check": "checks, writes nothing",
    "fleet.services.offers.catalogue.catalogue_model_check": "checks, writes nothing",
    "fleet.services.offers.upstreams.upstream_check": "checks, writes nothing",
    "metering.services.accounts.account_check": "checks, writes nothing",
    "metering.services.accounts.limits_check": "checks, writes nothing",
    "metering.services.budgets.budget_check": "checks, writes nothing",
    "metering.services.keys.key_check": "checks, writes nothing",
    "metering.services.accounts.capture_check": "checks, writes nothing",
    "metering.services.audit.changes_of": "compares, writes nothing",
    "metering.services.audit.values_of": "reads, writes nothing",
    "fleet.services.jobs.steps.neuron_away": "decides, writes nothing",
    "fleet.services.hosts.neurons.models_to_restore": "reads",
    "fleet.services.hosts.neurons.neurons_overdue": "reads",
    "fleet.services.hosts.neurons.reporting_neuron": "reads",
    # Parts of other services' transactions.
    "metering.services.audit.revision_bump": "the service that calls it is audited",
    "fleet.services.jobs.load_measurements.load_measurements_forget": "its caller is audited",
    "fleet.services.jobs.load_measurements.model_keep_unloaded": "its caller is audited",
    "fleet.services.jobs.load_measurements.kept_unloaded_forget": "its caller is audited",
    "fleet.services.jobs.load_measurements.kept_unloaded_forget_neuron": "a neuron's report",
    # What machines report, each second.
    "fleet.services.hosts.heartbeats.heartbeat_record": "a neuron's report",
    "fleet.services.hosts.heartbeats.report_record": "a neuron's report",
    "fleet.services.hosts.heartbeats.report_refresh": "a neuron's report",
    "fleet.services.hosts.heartbeats.problem_record": "a neuron's report, or its caller is audited",
    "fleet.services.hosts.cut_off.oversized_neurons_cut_off": "audited as the control's",
    "fleet.services.hosts.cut_off.flooding_neurons_cut_off": "audited as the control's",
    "fleet.services.hosts.neurons.desired_state_of_first_sight": "a neuron's report, by the policy",
    "fleet.services.hosts.invitations.invitation_check": "checks, writes nothing",
    "fleet.services.hosts.invitations.sharing_state": "reads",
    "fleet.services.hosts.invitations.redis_users_apply": "writes to Redis what is in the database",
    "fleet.services.hosts.neurons.desired_states_publish": "writes rows' states to Redis",
    "fleet.services.hosts.neurons.desired_states_read": "reads",
    "fleet.services.hosts.heartbeats.neuron_mark_away": "follows from a neuron's silence",
    "fleet.services.hosts.heartbeats.silent_neurons_mark_away": "follows from neurons' silence",
    "fleet.services.jobs.moves.load_job_advance": "a neuron's report",
    "fleet.services.jobs.moves.adapter_unload_advance": "a neuron's report",
    "fleet.services.jobs.steps.load_job_progress": "a neuron's report",
    "fleet.services.jobs.stage_orders.stage_loads_advance": "neurons' reports",
    "fleet.services.jobs.stage_orders.held_stages_release": "follows from ended, audited loads",
    "fleet.services.jobs.stage_orders.stage_load_call_off": "part of an audited unload",
    "fleet.services.jobs.stage_orders.stage_orders": "part of an audited start",
    "fleet.services.jobs.stage_orders.spans_neurons": "decides, writes nothing",
    "fleet.services.jobs.steps.job_claim": "a neuron's report, or part of an audited start",
    "fleet.services.jobs.steps.wait_for_job": "reads, writes nothing",
    "fleet.services.jobs.steps.job_report": "a neuron's report",
    "fleet.services.jobs.steps.job_end": "a neuron's report, or part of an audited start",
    "fleet.services.jobs.steps.job_send": "part of an audited start, or follows a report",
    "fleet.services.jobs.load_measurements.catalogue_changed": "clears a cache, writes nothing",
    "fleet.services.jobs.steps.send_load": "its job is audited",
    "fleet.services.jobs.steps.send_reload": "its job is audited",
    "fleet.services.jobs.steps.send_unload": "its job is audited",
    "fleet.services.jobs.steps.send_drop_adapter": "its job is audited",
    "fleet.services.jobs.steps.send_sleep": "its job is audited",
    "fleet.services.jobs.model_loads.check_may_sleep": "checks, writes nothing",
    "fleet.services.jobs.steps.spec_of": "reads, writes nothing",
    "fleet.services.jobs.reloads.reload_plan": "decides, writes nothing",
    "fleet.services.jobs.load_jobs.load_jobs_expire": "follows from neurons' silence",
    "fleet.services.jobs.downloads.download_neuron": "writes nothing",
    "fleet.services.jobs.downloads.downloads_record": "a neuron's report",
    "fleet.services.jobs.downloads.downloads_expire": "follows from neurons' silence",
    "fleet.services.jobs.load_measurements.load_measurement_record": "a neuron's report",
    "fleet.services.jobs.load_measurements.layer_costs_record": "a neuron's report, or files",
    "fleet.services.jobs.load_measurements.weight_bytes_record": "a neuron's report",
    "fleet.services.jobs.load_measurements.load_need_record": "a neuron's report",
    "fleet.services.jobs.load_measurements.prefill_averages_record": "a neuron's report",
    # Control acts by itself: each load that it starts is audited under its name.
    "fleet.services.jobs.reconciling.fleet_plan": "decides, writes nothing",
    "fleet.services.jobs.reconciling.plan_begin": "its jobs name control",
    "fleet.services.jobs.reconciling.jobs_known": "reads",
    "fleet.services.hosts.neurons.neuron_models_restored": "its load jobs name control",
    "fleet.services.hosts.neurons.neuron_models_to_restore_add": "its load job names the actor",
    # Requests, which the ledger records.
    "inference.conversations.services.response_save": "a client's request",
    "inference.conversations.services.response_progress": "a client's request continues",
    "inference.conversations.services.response_cancel": "a client's request",
    "inference.conversations.services.response_delete": "a client's request",
    "inference.conversations.services.leases_renew": "a gateway's lease",
    "inference.conversations.services.response_lost": "follows from a gateway that is gone",
}


def modules(name: str) -> Iterator[Any]:
    module = importlib.import_module(name)
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        yield from modules(f"{name}.{found.name}")


def public_functions(name: str) -> dict[str, Callable[..., Any]]:
    return {
        f"{module.__name__}.{function.__name__}": function
        for module in modules(name)
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not function.__name__.startswith("_")
    }


SERVICES = {path: service for name in PACKAGES for path, service in public_functions(name).items()}


def test_every_exception_is_a_service() -> None:
    assert set(WITHOUT_AN_ACTOR) <= SERVICES.keys()


@each_case("path", SERVICES)
def test_takes_an_actor(path: str) -> None:
    parameter = inspect.signature(SERVICES[path], eval_str=False).parameters.get("actor")
    if path in WITHOUT_AN_ACTOR:
        assert parameter is None, f"{path} takes an actor: it needs no reason any more"
        return
    assert parameter is not None, f"{path} changes something: by whom?"
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.annotation == Actor.__name__
    assert parameter.default is inspect.Parameter.empty, "nobody is an actor by default"
