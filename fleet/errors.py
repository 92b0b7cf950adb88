"""The fleet's exceptions.

    FleetError
    ├── IllegalTransitionError        our bug: a lifecycle was moved against its table
    ├── DeposedError                  503 control_deposed     retryable
    ├── UnknownModelError             404 model_not_found
    ├── ModelDisabledError            404 model_not_found
    ├── UnknownNeuronError            503 no_neuron            retryable
    ├── NeuronAwayError               503 neuron_away          retryable
    ├── ModelRecoveringError          503 model_recovering     retryable
    ├── InvitationError               400 invitation_refused
    ├── NeuronAliveError              409 neuron_alive
    ├── ReplicaNotFoundError          404 replica_not_found
    ├── EngineLogUnavailableError     503 log_unavailable      retryable
    ├── CachedModelNotFoundError      404 cached_model_not_found
    ├── CachedModelInUseError         409 in_use
    ├── ModelPinnedError              409 model_pinned
    ├── ModelHasAdaptersError         409 model_has_adapters
    ├── ModelAlreadyLoadedError       409 already_loaded
    ├── PlacementRefusedError         409 no_place
    │   └── CudaUnavailableError      503 cuda_unavailable
    ├── PlanUnavailableError          409 no_plan
    ├── JobCannotBeCancelledError     409 job_cannot_be_cancelled
    ├── CatalogueValueError           400 invalid_catalogue_value
    │   └── UpstreamValueError        400 invalid_value
    ├── ServedByUpstreamError         409 served_by_upstream
    ├── UnknownUpstreamError          404 upstream_not_found
    ├── UpstreamInUseError            409 upstream_in_use
    ├── UpstreamSecretError           409 upstream_key_unreadable
    ├── UpstreamUnavailableError      502 upstream_failed      retryable
    ├── BrokerUnavailableError        503 broker_away          retryable
    ├── CatalogueChangedError         409 catalogue_changed
    ├── SnapshotUnavailableError      503 fleet_unavailable    retryable
    └── HubError                      the hub gave no answer
        ├── HubUnavailableError       503 hub_unavailable      retryable
        ├── RepositoryUnknownError    404 repository_not_found
        └── UnknownSourceError        400 unknown_source

Messages are written for people. Imports nothing, so that pure code can raise these.
"""

from __future__ import annotations


class FleetError(Exception):
    """``http_status`` and ``code`` are what an API answers; ``retryable``: the same request may
    succeed later without a change by the operator; ``retry_after_s``: when, if known."""

    http_status = 500
    code = "fleet_error"
    retryable = False
    retry_after_s: float | None = None


class IllegalTransitionError(FleetError):
    code = "illegal_transition"


class DeposedError(FleetError):
    """Another control leads: this one has written nothing."""

    http_status = 503
    code = "control_deposed"
    retryable = True


class UnknownModelError(FleetError):
    http_status = 404
    code = "model_not_found"


class ModelDisabledError(FleetError):
    http_status = 404
    code = "model_not_found"


class UnknownNeuronError(FleetError):
    http_status = 503
    code = "no_neuron"
    retryable = True


class NeuronAwayError(FleetError):
    """The host belongs to the fleet and is offline."""

    http_status = 503
    code = "neuron_away"
    retryable = True

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelRecoveringError(NeuronAwayError):
    """The model is recovering on hosts that accept no loads now."""

    code = "model_recovering"


class InvitationError(FleetError):
    http_status = 400
    code = "invitation_refused"


class NeuronAliveError(FleetError):
    """The neuron is online: it would rejoin at once, and a new invitation needs confirmation."""

    http_status = 409
    code = "neuron_alive"


class ReplicaNotFoundError(FleetError):
    http_status = 404
    code = "replica_not_found"


class EngineLogUnavailableError(FleetError):
    http_status = 503
    code = "log_unavailable"
    retryable = True


class CachedModelNotFoundError(FleetError):
    http_status = 404
    code = "cached_model_not_found"


class CachedModelInUseError(FleetError):
    http_status = 409
    code = "in_use"


class ModelPinnedError(FleetError):
    http_status = 409
    code = "model_pinned"


class ModelHasAdaptersError(FleetError):
    http_status = 409
    code = "model_has_adapters"


class ModelAlreadyLoadedError(FleetError):
    """The model is loaded or loading."""

    http_status = 409
    code = "already_loaded"


class PlacementRefusedError(FleetError):
    http_status = 409
    code = "no_place"


class CudaUnavailableError(PlacementRefusedError):
    http_status = 503
    code = "cuda_unavailable"


class CannotSleepError(FleetError):
    http_status = 409
    code = "cannot_sleep"


class PlanUnavailableError(FleetError):
    """The costs of the model's layers are unknown, or its kind is not planned."""

    http_status = 409
    code = "no_plan"


class JobCannotBeCancelledError(FleetError):
    http_status = 409
    code = "job_cannot_be_cancelled"


class BrokerUnavailableError(FleetError):
    """A task could not be sent: nothing has happened."""

    http_status = 503
    code = "broker_away"
    retryable = True


class CatalogueValueError(FleetError):
    http_status = 400
    code = "invalid_catalogue_value"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UpstreamValueError(CatalogueValueError):
    code = "invalid_value"


class ServedByUpstreamError(FleetError):
    http_status = 409
    code = "served_by_upstream"

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} is served by an upstream: nothing of it is loaded here")


class UnknownUpstreamError(FleetError):
    http_status = 404
    code = "upstream_not_found"


class UpstreamInUseError(FleetError):
    http_status = 409
    code = "upstream_in_use"


class UpstreamSecretError(FleetError):
    """The upstream's key was stored under another signing key."""

    http_status = 409
    code = "upstream_key_unreadable"


class UpstreamUnavailableError(FleetError):
    """The message gives the reason, without any text of the other side."""

    http_status = 502
    code = "upstream_failed"
    retryable = True


class CatalogueChangedError(FleetError):
    http_status = 409
    code = "catalogue_changed"


class SnapshotUnavailableError(FleetError):
    http_status = 503
    code = "fleet_unavailable"
    retryable = True


class HubError(FleetError):
    code = "hub_error"


class HubUnavailableError(HubError):
    http_status = 503
    code = "hub_unavailable"
    retryable = True


class RepositoryUnknownError(HubError):
    http_status = 404
    code = "repository_not_found"


class UnknownSourceError(HubError):
    http_status = 400
    code = "unknown_source"
