"""Downloads as Ollama's pull asks for them: in the database, for threads. See ``ollama_pull``."""

from __future__ import annotations

from dataclasses import replace

from fleet import selectors, services
from fleet.errors import CatalogueValueError, FleetError, UnknownModelError
from fleet.models import Download
from inference.wire.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ServiceUnavailableError,
)
from inference.wire.ollama_pull import PullRequest, PullState
from metering.actor import Actor


def pull_start(request: PullRequest, actor: Actor) -> PullState:
    """Raises ``ApiError``."""
    try:
        if request.model is not None:
            download = services.model_download_start(actor=actor, model_name=request.model)
        else:
            assert request.source is not None, "a pull is of a model or of a source"
            download = services.download_start(
                actor=actor, source=request.source, file=request.file
            )
    except UnknownModelError as error:
        assert request.model is not None
        raise ModelNotFoundError(request.model) from error
    except CatalogueValueError as error:
        raise InvalidRequestError(str(error), param="model") from error
    except FleetError as error:
        raise ServiceUnavailableError(error.code, str(error)) from error
    return _state(download)


def pull_look(before: PullState) -> PullState:
    download = selectors.download_find(before.id)
    return replace(before, status="cancelled") if download is None else _state(download)


def _state(download: Download) -> PullState:
    return PullState(
        id=str(download.pk),
        where=download.neuron.name,
        status=download.status,
        bytes_done=download.bytes_done,
        bytes_total=download.bytes_total,
        failure_code=download.failure_code,
        failure_message=download.failure_message,
    )
