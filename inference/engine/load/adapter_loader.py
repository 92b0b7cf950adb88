"""Reads adapters and prepares them for a model, in a thread beside the engine's."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import torch

from inference.engine.adapters import LoadedAdapter
from inference.engine.errors import AdapterError
from inference.engine.faults.fault_classes import classify
from inference.engine.faults.kinds import OutOfMemoryFault
from inference.loading.adapter_files import open_adapter
from inference.models.backend import AnyModel
from inference.models.errors import UnsupportedAdapterError
from inference.protocol.load import AdapterSpec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_progress import LoadProgress
from inference.supervised_threads import SupervisedPool


class AdapterLoader:
    """One after the other, so that two downloads do not share the line and memory is asked for
    once."""

    def __init__(self, model: AnyModel, cache_dir: Path) -> None:
        self._model = model
        self._cache_dir = cache_dir
        self._pool = SupervisedPool(1, thread_name_prefix="adapter-loader")

    def load(self, spec: AdapterSpec) -> Future[LoadedAdapter]:
        """Does not wait. The future raises ``AdapterError``."""
        return self._pool.submit(self._load, spec)

    @torch.inference_mode()
    def _load(self, spec: AdapterSpec) -> LoadedAdapter:
        try:
            opened = open_adapter(spec, self._model.config, self._cache_dir, _no_progress)
            prepared = self._model.prepare_adapter(opened.weights)
        except (LoadError, UnsupportedAdapterError) as error:
            raise AdapterError(str(error)) from error
        except (MemoryError, RuntimeError) as error:
            if issubclass(classify(error, self._model.device.type), OutOfMemoryFault):
                raise AdapterError("the device has no memory left for it") from error
            raise
        return LoadedAdapter(prepared, opened.fingerprint)


def _no_progress(progress: LoadProgress) -> None:
    """Discards the progress: an adapter's download is too short to report."""
