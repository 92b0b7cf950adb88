"""An operator's sampling defaults of a model, under what the request names itself. Pure.

The neuron fills what is still open from the model's own files. Defaults are applied here, so a
change of them needs no reload.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from inference.protocol.generation import GenerationRequest, Request


def with_sampling_defaults(request: Request, defaults: Mapping[str, float]) -> Request:
    """``defaults`` are by the names of ``SamplingOptions``."""
    if not isinstance(request, GenerationRequest):
        return request
    options = request.sampling
    missing = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if not missing:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(options, **missing))
