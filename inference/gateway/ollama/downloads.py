"""Downloads as Ollama's pull asks for them, and the model that one is of: in the database, for
threads. See ``ollama_pull``."""

from __future__ import annotations

import logging
from dataclasses import replace

from django.utils import timezone

from fleet import selectors, services
from fleet.errors import CatalogueValueError, FleetError, UnknownModelError
from fleet.models import Download
from inference.wire.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ServiceUnavailableError,
)
from inference.wire.ollama.pull import PullRequest, PullState
from metering.actor import Actor

logger = logging.getLogger(__name__)


def pull_start(request: PullRequest, actor: Actor) -> PullState:
    """Raises ``ApiError``."""
    asked_at = timezone.now()
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
    return _state(download, is_ours=download.created_at >= asked_at)


def pull_look(before: PullState) -> PullState:
    download = selectors.download_find(before.id)
    if download is None:
        return replace(before, status="cancelled")
    return _state(download, is_ours=before.is_ours)


def pull_cancel(state: PullState, actor: Actor) -> None:
    """What came of it stays, for the next pull."""
    download = selectors.download_find(state.id)
    if download is None or not download.is_active:
        return
    try:
        services.download_cancel(actor=actor, download=download)
    except FleetError as error:
        logger.warning("the download %s continues without its client: %s", state.id, error)


def pull_offer(request: PullRequest, state: PullState, actor: Actor) -> None:
    """What a finished download is of is in the catalogue from then on. Raises ``ApiError``."""
    assert request.source is not None, "what the catalogue names is offered already"
    try:
        services.pulled_model_offer(
            actor=actor,
            source=request.source,
            file=request.file,
            called=request.called,
            num_bytes=state.bytes_total,
        )
    except CatalogueValueError as error:
        raise InvalidRequestError(str(error), param="model") from error


def _state(download: Download, *, is_ours: bool) -> PullState:
    return PullState(
        id=str(download.pk),
        where=download.neuron.name,
        status=download.status,
        is_ours=is_ours,
        bytes_done=download.bytes_done,
        bytes_total=download.bytes_total,
        failure_code=download.failure_code,
        failure_message=download.failure_message,
    )
