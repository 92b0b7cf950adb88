"""The fleet's exceptions, each with its code and the HTTP status that an API answers.

Messages are written for people. Imports nothing, so that pure code can raise these.
"""

from __future__ import annotations


class FleetError(Exception):
    """``retry_after_s``: when the same request may succeed, if known."""

    http_status = 500
    code = "fleet_error"
    retry_after_s: float | None = None

    def __init_subclass__(cls, code: str | None = None, http_status: int | None = None) -> None:
        """A subclass has its base's where it names none."""
        cls.code, cls.http_status = code or cls.code, http_status or cls.http_status


class IllegalTransitionError(FleetError, code="illegal_transition"): ...


class DeposedError(FleetError, code="control_deposed", http_status=503):
    """Another control leads: this one has written nothing."""


class UnknownModelError(FleetError, code="model_not_found", http_status=404): ...


class ModelDisabledError(FleetError, code="model_not_found", http_status=404): ...


class UnknownNeuronError(FleetError, code="no_neuron", http_status=503): ...


class NeuronAwayError(FleetError, code="neuron_away", http_status=503):
    """The host belongs to the fleet and is offline."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelRecoveringError(NeuronAwayError, code="model_recovering"):
    """The model is recovering on hosts that accept no loads now."""


class InvitationError(FleetError, code="invitation_refused", http_status=400): ...


class NeuronAliveError(FleetError, code="neuron_alive", http_status=409):
    """The neuron is online: it would rejoin at once, and a new invitation needs confirmation."""


class ReplicaNotFoundError(FleetError, code="replica_not_found", http_status=404): ...


class EngineLogUnavailableError(FleetError, code="log_unavailable", http_status=503): ...


class CachedModelNotFoundError(FleetError, code="cached_model_not_found", http_status=404): ...


class CachedModelInUseError(FleetError, code="in_use", http_status=409): ...


class ModelPinnedError(FleetError, code="model_pinned", http_status=409): ...


class ModelHasAdaptersError(FleetError, code="model_has_adapters", http_status=409): ...


class ModelAlreadyLoadedError(FleetError, code="already_loaded", http_status=409):
    """The model is loaded or loading."""


class PlacementRefusedError(FleetError, code="no_place", http_status=409): ...


class CudaUnavailableError(PlacementRefusedError, code="cuda_unavailable", http_status=503): ...


class CannotSleepError(FleetError, code="cannot_sleep", http_status=409): ...


class PlanUnavailableError(FleetError, code="no_plan", http_status=409):
    """The costs of the model's layers are unknown, or its kind is not planned."""


class JobCannotBeCancelledError(FleetError, code="job_cannot_be_cancelled", http_status=409): ...


class BrokerUnavailableError(FleetError, code="broker_away", http_status=503):
    """A task could not be sent: nothing has happened."""


class CatalogueValueError(FleetError, code="invalid_catalogue_value", http_status=400):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UpstreamValueError(CatalogueValueError, code="invalid_value"): ...


class ServedByUpstreamError(FleetError, code="served_by_upstream", http_status=409):
    def __init__(self, model: str) -> None:
        super().__init__(f"{model} is served by an upstream: nothing of it is loaded here")


class UnknownUpstreamError(FleetError, code="upstream_not_found", http_status=404): ...


class UpstreamInUseError(FleetError, code="upstream_in_use", http_status=409): ...


class UpstreamSecretError(FleetError, code="upstream_key_unreadable", http_status=409):
    """The upstream's key was stored under another signing key."""


class UpstreamUnavailableError(FleetError, code="upstream_failed", http_status=502):
    """The message gives the reason, without any text of the other side."""


class CatalogueChangedError(FleetError, code="catalogue_changed", http_status=409): ...


class SnapshotUnavailableError(FleetError, code="fleet_unavailable", http_status=503): ...


class HubError(FleetError, code="hub_error"): ...


class HubUnavailableError(HubError, code="hub_unavailable", http_status=503): ...


class RepositoryUnknownError(HubError, code="repository_not_found", http_status=404): ...


class UnknownSourceError(HubError, code="unknown_source", http_status=400): ...
