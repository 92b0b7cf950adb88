"""What operators can do to each noun, and by which doors: REST, a command, the admin.

The tests hold this table to the code: every door exists, every audited service, route that writes,
command and admin page is in it, and a deed that lacks a door gives the reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """``services`` name modules and functions of ``fleet.services`` and ``metering.services``;
    none: it reads. ``admin`` is MODEL: VERB, where VERB is view, add, change, delete,
    ``action NAME``, ``inline MODEL`` or ``page URL-NAME``. ``why`` is an empty door's reason."""

    noun: str
    verb: str
    rest: str = ""
    command: str = ""
    admin: str = ""
    services: tuple[str, ...] = ()
    why: str = ""


def _reading(noun: str, rest: str, command: str, admin: str, row: str) -> tuple[Deed, Deed]:
    view = f"{admin}: view"
    return (
        Deed(noun=noun, verb="list", rest=f"GET {rest}", command=f"{command} list", admin=view),
        Deed(
            noun=noun,
            verb="show",
            rest=f"GET {rest}/{row}",
            command=f"{command} show",
            admin=view,
        ),
    )


def _writing(
    noun: str, rest: str, command: str, admin: str, row: str, services: tuple[str, str, str]
) -> tuple[Deed, ...]:
    verbs = (("add", "POST", ""), ("change", "PATCH", row), ("remove", "DELETE", row))
    words = {"remove": "delete"}
    return tuple(
        Deed(
            noun=noun,
            verb=verb,
            rest=f"{method} {rest}/{where}".rstrip("/"),
            command=f"{command} {verb}",
            admin=f"{admin}: {words.get(verb, verb)}",
            services=(service,),
        )
        for (verb, method, where), service in zip(verbs, services, strict=True)
    )


NEURONS = (
    *_reading("neurons", "/api/neurons", "neurons", "fleet.neuron", "{name}"),
    *(
        Deed(
            noun="neurons",
            verb=verb,
            rest=f"POST /api/neurons/{{name}}/{verb}",
            command=f"neurons {verb}",
            admin=f"fleet.neuron: action {verb}",
            services=(f"neurons.neuron_{verb}",),
        )
        for verb in ("admit", "refuse", "drain", "resume")
    ),
    Deed(
        noun="neurons",
        verb="remove",
        rest="DELETE /api/neurons/{name}",
        command="neurons remove",
        admin="fleet.neuron: action remove",
        services=("neurons.neuron_remove",),
    ),
    Deed(
        noun="neurons",
        verb="change the policy",
        rest="PATCH /api/policy",
        command="neurons policy",
        admin="fleet.fleetpolicy: change",
        services=("neurons.admission_policy_set",),
    ),
)
INVITATIONS = (
    Deed(
        noun="invitations",
        verb="list",
        rest="GET /api/invitations",
        command="neurons invitations",
        admin="fleet.invitation: view",
    ),
    Deed(
        noun="invitations",
        verb="show",
        rest="GET /api/invitations/{name}",
        command="neurons invitation",
        admin="fleet.invitation: view",
    ),
    Deed(
        noun="invitations",
        verb="change",
        why="A second invitation of a name voids the line of the first.",
    ),
    Deed(
        noun="invitations",
        verb="add",
        rest="POST /api/invitations",
        command="neurons invite",
        admin="fleet.invitation: add",
        services=("invitations.neuron_invite", "neurons.neuron_expect"),
    ),
    Deed(
        noun="invitations",
        verb="remove",
        rest="DELETE /api/invitations/{name}",
        command="neurons revoke",
        admin="fleet.invitation: delete",
        services=("invitations.neuron_revoke",),
    ),
    Deed(
        noun="sharing",
        verb="open",
        admin="page sharing",
        services=("sharing.redis_share",),
        why="serve --share at a start; whoever finds a key shall open no address with it",
    ),
    Deed(
        noun="sharing",
        verb="close",
        admin="page sharing",
        services=("sharing.redis_unshare",),
        why="a start of serve without it",
    ),
)
MODELS = (
    *_reading("models and adapters", "/api/catalogue", "models", "fleet.cataloguemodel", "{name}"),
    *_writing(
        "models and adapters",
        "/api/catalogue",
        "models",
        "fleet.cataloguemodel",
        "{name}",
        (
            "catalogue.catalogue_model_create",
            "catalogue.catalogue_model_update",
            "catalogue.catalogue_model_delete",
        ),
    ),
    Deed(
        noun="models and adapters",
        verb="import",
        rest="POST /api/models.toml",
        command="models import",
        admin="fleet.cataloguemodel: page fleet_cataloguemodel_import",
        services=("catalogue_import.catalogue_import",),
    ),
    Deed(
        noun="models and adapters",
        verb="export",
        rest="GET /api/models.toml",
        command="models export",
        admin="fleet.cataloguemodel: page fleet_cataloguemodel_export",
    ),
    Deed(
        noun="models and adapters",
        verb="search the hub",
        rest="GET /api/hub",
        command="models search",
        admin="fleet.cataloguemodel: page fleet_cataloguemodel_hub",
    ),
    Deed(
        noun="models and adapters",
        verb="plan",
        rest="GET /api/catalogue/{name}/plan",
        command="models plan",
        why="A plan reads the hub, some seconds: it is asked for, not shown with each page.",
    ),
    Deed(
        noun="models and adapters",
        verb="load",
        rest="POST /api/catalogue/{name}/load",
        command="models load",
        admin="fleet.cataloguemodel: action load_selected",
        services=("model_loads.model_load_start", "load_jobs.load_job_start"),
    ),
    Deed(
        noun="models and adapters",
        verb="unload",
        rest="POST /api/catalogue/{name}/unload",
        command="models unload",
        admin="fleet.cataloguemodel: action unload_selected",
        services=(
            "load_jobs.unload_job_start",
            "load_jobs.model_unload_everywhere",
            "load_jobs.model_unload_to_stay",
        ),
    ),
    Deed(
        noun="models and adapters",
        verb="reload",
        rest="POST /api/catalogue/{name}/reload",
        command="models reload",
        admin="fleet.cataloguemodel: action reload_outdated",
        services=("reloads.reload_job_start", "reloads.model_reload_everywhere"),
    ),
    Deed(
        noun="models and adapters",
        verb="sleep",
        rest="POST /api/catalogue/{name}/sleep",
        command="models sleep",
        admin="fleet.replica: action sleep_selected",
        services=("sleeps.sleep_job_start", "sleeps.model_sleep_everywhere"),
    ),
    Deed(
        noun="models and adapters",
        verb="wake",
        rest="POST /api/catalogue/{name}/wake",
        command="models wake",
        admin="fleet.replica: action wake_selected",
        services=("sleeps.wake_job_start", "sleeps.model_wake_everywhere"),
    ),
)
ALIASES = (
    *_reading("aliases", "/api/aliases", "aliases", "fleet.alias", "{name}"),
    *_writing(
        "aliases",
        "/api/aliases",
        "aliases",
        "fleet.alias",
        "{name}",
        ("catalogue.alias_create", "catalogue.alias_update", "catalogue.alias_delete"),
    ),
)
UPSTREAMS = (
    *_reading("upstreams", "/api/upstreams", "upstreams", "fleet.upstream", "{name}"),
    *_writing(
        "upstreams",
        "/api/upstreams",
        "upstreams",
        "fleet.upstream",
        "{name}",
        (
            "upstreams.upstream_create",
            "upstreams.upstream_update",
            "upstreams.upstream_delete",
        ),
    ),
    Deed(
        noun="upstreams",
        verb="test",
        rest="POST /api/upstreams/{name}/test",
        command="upstreams test",
        admin="fleet.upstream: action test_selected",
        services=("upstreams.upstream_test", "upstreams.upstream_discovered"),
    ),
)
JOBS = (
    *_reading("jobs", "/api/load-jobs", "jobs", "fleet.loadjob", "{id}"),
    Deed(
        noun="jobs",
        verb="add",
        rest="POST /api/load-jobs",
        command="models load",
        admin="fleet.cataloguemodel: action load_selected_on_neuron",
        services=("load_jobs.load_job_start",),
    ),
    Deed(
        noun="jobs",
        verb="cancel",
        rest="POST /api/load-jobs/{id}/cancel",
        command="jobs cancel",
        admin="fleet.loadjob: action cancel_selected",
        services=("load_jobs.load_job_cancel",),
    ),
)
DOWNLOADS = (
    *_reading("downloads", "/api/downloads", "downloads", "fleet.download", "{id}"),
    Deed(
        noun="downloads",
        verb="add",
        rest="POST /api/downloads",
        command="models pull",
        admin="fleet.download: page fleet_download_cached",
        services=("downloads.download_start", "downloads.model_download_start"),
    ),
    Deed(
        noun="downloads",
        verb="cancel",
        rest="POST /api/downloads/{id}/cancel",
        command="downloads cancel",
        admin="fleet.download: action cancel_selected",
        services=("downloads.download_cancel",),
    ),
    Deed(
        noun="downloads",
        verb="list cached files",
        rest="GET /api/cached",
        command="models cached",
        admin="fleet.download: page fleet_download_cached",
    ),
    Deed(
        noun="downloads",
        verb="remove cached files",
        rest="POST /api/downloads",
        command="models cached",
        admin="fleet.download: page fleet_download_cached",
        services=("downloads.download_delete_start",),
    ),
)
ACCOUNTS = (
    *_reading("accounts", "/api/accounts", "accounts", "metering.account", "{name}"),
    *_writing(
        "accounts",
        "/api/accounts",
        "accounts",
        "metering.account",
        "{name}",
        ("accounts.account_create", "accounts.account_update", "accounts.account_delete"),
    ),
    *(
        Deed(
            noun="members",
            verb=verb,
            rest=f"{method} /api/members{where}",
            command=f"members {verb}",
            admin="metering.account: inline metering.membership",
            services=services,
        )
        for verb, method, where, services in (
            ("list", "GET", "", ()),
            ("show", "GET", "/{account}/{user}", ()),
            ("add", "POST", "", ("accounts.membership_set",)),
            ("change", "PATCH", "/{account}/{user}", ("accounts.membership_set",)),
            ("remove", "DELETE", "/{account}/{user}", ("accounts.membership_remove",)),
        )
    ),
)
KEYS = (
    *_reading("keys", "/api/keys", "keys", "metering.apikey", "{prefix}"),
    *_writing(
        "keys",
        "/api/keys",
        "keys",
        "metering.apikey",
        "{prefix}",
        ("keys.key_create", "keys.key_update", "keys.key_revoke"),
    )[:2],
    Deed(
        noun="keys",
        verb="import",
        rest="POST /api/keys",
        command="keys import",
        services=("keys.key_create",),
        why="The admin makes keys; one that was chosen elsewhere comes from a script.",
    ),
    Deed(
        noun="keys",
        verb="revoke",
        rest="DELETE /api/keys/{prefix}",
        command="keys revoke",
        admin="metering.apikey: action revoke_selected",
        services=("keys.key_revoke",),
    ),
)
BUDGETS = (
    *_reading("caps", "/api/budgets", "budgets", "metering.budget", "{pk}"),
    *_writing(
        "caps",
        "/api/budgets",
        "budgets",
        "metering.budget",
        "{pk}",
        ("budgets.budget_create", "budgets.budget_update", "budgets.budget_remove"),
    ),
)
REQUESTS = (
    Deed(
        noun="requests",
        verb="list",
        rest="GET /api/requests",
        command="requests list",
        admin="page requests",
    ),
    Deed(
        noun="requests",
        verb="show",
        rest="GET /api/requests/{id}",
        command="requests show",
        admin="page requests",
    ),
    Deed(
        noun="requests",
        verb="read bodies",
        rest="GET /api/requests/{id}/capture",
        command="requests show",
        admin="page requests",
        services=("accounts.captured_request_read",),
    ),
    Deed(
        noun="requests",
        verb="change",
        why="Records are not changed; the control deletes old ones.",
    ),
)
OTHERS = (
    Deed(
        noun="series",
        verb="list",
        rest="GET /api/series",
        command="series list",
        admin="page series-panel",
    ),
    Deed(
        noun="settings",
        verb="list",
        rest="GET /api/settings",
        command="settings list",
        admin="page settings",
    ),
    Deed(
        noun="settings",
        verb="show",
        rest="GET /api/settings/{name}",
        command="settings show",
        admin="page settings",
    ),
    Deed(
        noun="settings",
        verb="change",
        why="They are environment variables, read when a process starts.",
    ),
    Deed(
        noun="audit",
        verb="list",
        rest="GET /api/audit",
        command="audit list",
        admin="page usage-audit",
    ),
    Deed(
        noun="audit",
        verb="change",
        why="Entries are never changed or removed.",
    ),
)
DEEDS = (
    *NEURONS,
    *INVITATIONS,
    *MODELS,
    *ALIASES,
    *UPSTREAMS,
    *JOBS,
    *DOWNLOADS,
    *ACCOUNTS,
    *KEYS,
    *BUDGETS,
    *REQUESTS,
    *OTHERS,
)
NOT_DONE_BY_OPERATORS = {
    "audit.row_update": "a part of every change of an account or of a key",
    "catalogue.default_model_ensure": "the command ensure_default_model, of the packages",
    "catalogue.default_model_offer": "each start of serve",
    "cut_off.neuron_cut_off": "the gateway and the control, of a host that floods",
    "invitations.share_record": "serve --share, and a part of opening and closing it on the page",
    "steps.job_create": "a part of every start of a job",
    "model_loads.placed_load_start": "what placement decides",
    "pulled_models.pulled_model_offer": "the end of a pull by Ollama's API",
    "audit.audit_entry_create": "a part of every service",
}
"""Audited services that no operator asks for by themselves: who does."""
ADMIN_ALONE = {
    "auth.user": "Django's commands createsuperuser and changepassword; members need a user",
    "auth.group": "Django's groups of permissions, for people who log in to the admin",
    "bench.benchtarget": "bench.toml, by the command bench",
    "bench.sweepplan": "bench.toml, by the command bench",
    "fleet.device": "neurons report them: GET /api/devices, neurons show",
    "metering.ledgerentry": "GET /api/usage and the command usage sum them",
    "metering.usagehour": "GET /api/usage and the command usage",
}
"""Admin pages of nouns that are not in the table, each with its purpose."""
OTHER_ROUTES = {
    "POST /api/neurons/{name}/models/load": "the original system's path of models load",
    "POST /api/neurons/{name}/models/unload": "the original system's path of models unload",
}
OTHER_COMMANDS = frozenset(
    {
        *("backup", "bench once", "bench run", "bench report", "bench compare", "bench import"),
        *("chat", "connect", "deploy_gate", "ensure_default_model", "gateway"),
        *("logs", "restore", "status", "tp_smoke", "usage", "logins"),
    }
)
"""Commands that manage no noun."""
