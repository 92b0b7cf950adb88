"""Every write to the fleet's database, by noun. Keyword-only functions named <entity>_<action>."""

from fleet.services.hosts.cut_off import (
    flooding_neurons_cut_off,
    neuron_cut_off,
    oversized_neurons_cut_off,
)
from fleet.services.hosts.heartbeats import (
    heartbeat_record,
    neuron_mark_away,
    report_record,
    silent_neurons_mark_away,
)
from fleet.services.hosts.invitations import (
    neuron_invite,
    neuron_revoke,
    redis_users_apply,
    share_record,
)
from fleet.services.hosts.neurons import (
    admission_policy_set,
    desired_states_publish,
    desired_states_read,
    neuron_admit,
    neuron_drain,
    neuron_expect,
    neuron_models_restored,
    neuron_refuse,
    neuron_remove,
    neuron_resume,
)
from fleet.services.hosts.sharing import redis_share, redis_unshare, sharing_state
from fleet.services.jobs.kept_unloaded import kept_unloaded_forget
from fleet.services.jobs.load_jobs import (
    load_job_cancel,
    load_job_start,
    load_jobs_expire,
    model_unload_everywhere,
    model_unload_to_stay,
    unload_job_start,
)
from fleet.services.jobs.model_loads import model_load_start, placed_load_start
from fleet.services.jobs.reconciling import fleet_plan, plan_begin
from fleet.services.jobs.reloads import model_reload_everywhere, reload_job_start
from fleet.services.jobs.sleeps import (
    model_sleep_everywhere,
    model_wake_everywhere,
    sleep_job_start,
    wake_job_start,
)
from fleet.services.jobs.stage_orders import held_stages_release, stage_loads_advance
from fleet.services.model_files.download_moves import downloads_expire, downloads_record
from fleet.services.model_files.downloads import (
    download_cancel,
    download_delete_start,
    download_start,
    model_download_start,
)
from fleet.services.model_files.pulled_models import pulled_model_offer
from fleet.services.offers.catalogue import (
    alias_check,
    alias_create,
    alias_delete,
    alias_update,
    catalogue_model_check,
    catalogue_model_create,
    catalogue_model_delete,
    catalogue_model_update,
    default_model_ensure,
    default_model_offer,
)
from fleet.services.offers.catalogue_import import catalogue_import
from fleet.services.offers.upstreams import (
    upstream_check,
    upstream_create,
    upstream_delete,
    upstream_discovered,
    upstream_test,
    upstream_update,
)

__all__ = [
    "admission_policy_set",
    "alias_check",
    "alias_create",
    "alias_delete",
    "alias_update",
    "catalogue_import",
    "catalogue_model_check",
    "catalogue_model_create",
    "catalogue_model_delete",
    "catalogue_model_update",
    "default_model_ensure",
    "default_model_offer",
    "desired_states_publish",
    "desired_states_read",
    "download_cancel",
    "download_delete_start",
    "download_start",
    "downloads_expire",
    "downloads_record",
    "fleet_plan",
    "flooding_neurons_cut_off",
    "heartbeat_record",
    "held_stages_release",
    "kept_unloaded_forget",
    "load_job_cancel",
    "load_job_start",
    "load_jobs_expire",
    "model_download_start",
    "model_load_start",
    "model_reload_everywhere",
    "model_sleep_everywhere",
    "model_unload_everywhere",
    "model_unload_to_stay",
    "model_wake_everywhere",
    "neuron_admit",
    "neuron_cut_off",
    "neuron_drain",
    "neuron_expect",
    "neuron_invite",
    "neuron_mark_away",
    "neuron_models_restored",
    "neuron_refuse",
    "neuron_remove",
    "neuron_resume",
    "neuron_revoke",
    "oversized_neurons_cut_off",
    "placed_load_start",
    "plan_begin",
    "pulled_model_offer",
    "redis_share",
    "redis_unshare",
    "redis_users_apply",
    "reload_job_start",
    "report_record",
    "share_record",
    "sharing_state",
    "silent_neurons_mark_away",
    "sleep_job_start",
    "stage_loads_advance",
    "unload_job_start",
    "upstream_check",
    "upstream_create",
    "upstream_delete",
    "upstream_discovered",
    "upstream_test",
    "upstream_update",
    "wake_job_start",
]
