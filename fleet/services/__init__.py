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
)
from fleet.services.heartbeats import (
    heartbeat_record,
    neuron_mark_away,
    silent_neurons_mark_away,
)
from fleet.services.load_jobs import (
    load_job_start,
    load_jobs_expire,
    pinned_models_reconcile,
    replica_unload,
)

__all__ = [
    "alias_check",
    "alias_create",
    "alias_delete",
    "alias_update",
    "catalogue_model_check",
    "catalogue_model_create",
    "catalogue_model_delete",
    "catalogue_model_update",
    "default_model_ensure",
    "heartbeat_record",
    "load_job_start",
    "load_jobs_expire",
    "neuron_mark_away",
    "pinned_models_reconcile",
    "replica_unload",
    "silent_neurons_mark_away",
]
