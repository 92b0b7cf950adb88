"""Every write to the fleet's database, by noun. Keyword-only functions named <entity>_<action>."""

from fleet.services.catalogue import (
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
from fleet.services.catalogue_import import catalogue_import
from fleet.services.cut_off import (
    flooding_neurons_cut_off,
    neuron_cut_off,
    oversized_neurons_cut_off,
)
from fleet.services.download_moves import downloads_expire, downloads_record
from fleet.services.downloads import (
    download_cancel,
    download_delete_start,
    download_start,
    model_download_start,
)
from fleet.services.drills import fault_inject
from fleet.services.heartbeats import (
    heartbeat_record,
    neuron_mark_away,
    report_record,
    silent_neurons_mark_away,
)
from fleet.services.invitations import (
    neuron_invite,
    neuron_revoke,
    redis_users_apply,
    share_record,
)
from fleet.services.kept_unloaded import kept_unloaded_forget
from fleet.services.load_jobs import (
    load_job_cancel,
    load_job_start,
    load_jobs_expire,
    model_unload_everywhere,
    model_unload_to_stay,
    unload_job_start,
)
from fleet.services.model_loads import model_load_start
from fleet.services.neurons import (
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
from fleet.services.placed_loads import placed_load_start
from fleet.services.pulled_models import pulled_model_offer
from fleet.services.reconciling import fleet_plan, plan_begin
from fleet.services.reloads import model_reload_everywhere, reload_job_start
from fleet.services.sleeps import (
    model_sleep_everywhere,
    model_wake_everywhere,
    sleep_job_start,
    wake_job_start,
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
    "fault_inject",
    "fleet_plan",
    "flooding_neurons_cut_off",
    "heartbeat_record",
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
    "redis_users_apply",
    "reload_job_start",
    "report_record",
    "share_record",
    "silent_neurons_mark_away",
    "sleep_job_start",
    "unload_job_start",
    "wake_job_start",
]
