"""Loads mutated files in a process that may die of them.

Writes one JSON line before each case and one when it has ended. Its arguments are those of
``campaign._run_child``.
"""

from __future__ import annotations

import functools
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import psutil
import torch

from inference.garbage import release_freed_memory
from inference.loading.adapter_files import open_adapter
from inference.loading.embedding.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import OpenedModel, open_model
from inference.models import registry
from inference.models.embedding import EmbeddingModel
from inference.models.errors import ModelError, UnfitWeightsError
from inference.models.registry import build_fastest_model
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from tests.inference.adapter_files import spec_of
from tests.inference.loading.mutations.mutations import mutate

ADDRESS_SPACE_BYTES = 8 * 1024**3
"""The address space that the child may take beside the memory that is mapped when the first case
begins."""
MOST_CASE_BYTES = 400 * 1024**2
"""What a case of a small file may leave in memory at its highest."""
UNCHANGED = -1
"""The case of the files as they are, which must answer."""
CONTEXT_TOKENS = 256
BLOCK_TOKENS = 32
PROMPT = [1, 2, 3]


def main() -> None:
    works, native_cache_dir = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    # A library's name is a digest of its sources: looking it up reads all of them.
    registry.load_library = functools.cache(registry.load_library)
    _limit_memory()
    for subject, kind, source, first, last in works:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(first, last):
                case = {"subject": subject, "case": number}
                print(json.dumps(case), flush=True)
                files = _Case(subject, kind, Path(source), number, Path(folder), native_cache_dir)
                print(json.dumps(case | files.outcome()), flush=True)
                shutil.rmtree(Path(folder) / "tokenizers", ignore_errors=True)


def _limit_memory() -> None:
    """What asks for a terabyte gets none, whatever this machine would promise."""
    mapped_bytes = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + ADDRESS_SPACE_BYTES,) * 2)


class _Case:
    def __init__(
        self, subject: str, kind: str, source: Path, seed: int, folder: Path, native_cache_dir: Path
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._native_cache_dir = native_cache_dir
        self._base = source.parent / "base"
        self._source = source
        if seed != UNCHANGED:
            rng = random.Random(f"{subject} {seed}")
            self._source = mutate(kind, source, folder / "mutated", rng)

    def outcome(self) -> dict[str, object]:
        started_s, before_bytes = time.monotonic(), psutil.Process().memory_info().rss
        found = self._found()
        grown_bytes = psutil.Process().memory_info().rss - before_bytes
        if grown_bytes > MOST_CASE_BYTES:
            found |= {"is_wrong": True, "words": f"{grown_bytes} bytes; {found['words']}"}
        release_freed_memory()
        return {"seconds": time.monotonic() - started_s, **found}

    def _found(self) -> dict[str, object]:
        try:
            return {"found": "answered", "words": self._answer(), "is_wrong": False}
        except UnfitWeightsError as error:
            return _raw("a gap in the checks before", error)
        except LoadError as error:
            return {"found": type(error).__name__, "words": str(error), "is_wrong": not str(error)}
        except ModelError as error:
            return {"found": type(error).__name__, "words": str(error), "is_wrong": False}
        except BaseException as error:  # noqa: BLE001 -- a Rust panic is none of Exception's
            return _raw(type(error).__name__, error)

    @torch.inference_mode()
    def _answer(self) -> str:
        if self._kind == "adapter":
            return self._adapted()
        opened = open_model(self._spec(self._source), self._folder, lambda _: None)
        if isinstance(opened, OpenedEmbeddingModel):
            model = EmbeddingModel(opened.directory, opened.config, opened.device, opened.dtype)
            vectors = model.embed([torch.tensor(PROMPT)])
            return f"an embedding {tuple(vectors.shape)}"
        try:
            return self._first_token(opened)
        finally:
            opened.close()

    def _adapted(self) -> str:
        base = open_model(self._spec(self._base), self._folder, lambda _: None)
        assert isinstance(base, OpenedModel)
        found = open_adapter(spec_of(self._source, "a"), base.config, self._folder, lambda _: None)
        model, _ = build_fastest_model(
            base.config, base.weights, CONTEXT_TOKENS, self._native_cache_dir
        )
        model.prepare_adapter(found.weights)
        return "an adapter"

    def _first_token(self, opened: OpenedModel) -> str:
        context_tokens = min(opened.config.max_positions, CONTEXT_TOKENS)
        model, words = build_fastest_model(
            opened.config, opened.weights, context_tokens, self._native_cache_dir
        )
        prompt = [token % opened.config.vocab_size for token in PROMPT[:context_tokens]]
        kv = model.new_kv(1, BLOCK_TOKENS, NUM_LONE_STATES)
        logits = model.forward(StepInput.of_sequence(prompt, BLOCK_TOKENS), kv)
        assert logits.shape[-1] == opened.config.vocab_size
        return words

    def _spec(self, source: Path) -> LoadSpec:
        return LoadSpec(job_id="1", model="m", source=f"path:{source}", devices=["cpu"])


def _raw(found: str, error: BaseException) -> dict[str, object]:
    last = traceback.format_exc().strip().splitlines()[-12:]
    return {"found": found, "words": f"{error}"[:300], "is_wrong": True, "trace": "\n".join(last)}


if __name__ == "__main__":
    main()
