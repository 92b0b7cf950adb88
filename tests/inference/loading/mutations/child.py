"""Loads mutated files in a process that may die of them.

Writes one JSON line before each case and one when it has ended. Its arguments are those that
``test_mutated_files.check`` gives.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import psutil
import torch

from inference.garbage import release_freed_memory
from inference.loading.adapter_files import open_adapter
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import open_model
from inference.models import registry
from inference.models.embedding import EmbeddingModel
from inference.models.errors import ModelError, UnfitWeightsError
from inference.models.registry import build_fastest_model
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from tests.inference.adapter_files import spec_of
from tests.inference.loading.mutations.mutations import mutate

HANG_S = 180.0
"""The usual case takes some milliseconds."""
ADDRESS_SPACE_BYTES = 8 * 1024**3
"""The address space that the child may take beside what is mapped when the first case begins: what
asks for a terabyte gets none, whatever this machine would promise."""
MOST_CASE_BYTES = 400 * 1024**2
"""What a case of a small file may leave in memory at its highest."""
UNCHANGED = -1
"""The case of the files as they are, which must answer."""
CONTEXT_TOKENS, BLOCK_TOKENS = 256, 32
PROMPT = [1, 2, 3]


def main() -> None:
    sources, first, last = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    native_cache_dir = Path(sys.argv[4])
    torch.set_num_threads(1)
    # A library's name is a digest of its sources: looking it up reads all of them.
    registry.load_library = functools.cache(registry.load_library)
    mapped_bytes = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + ADDRESS_SPACE_BYTES,) * 2)
    for subject, (kind, path) in sources.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder, source = Path(scratch), Path(path)
            for number in range(first, last):
                case = {"subject": subject, "case": number}
                print(json.dumps(case), flush=True)
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                changed, rng = source, random.Random(f"{subject} {number}")
                if number != UNCHANGED:
                    changed = mutate(kind, source, folder / "mutated", rng)
                found = outcome(changed, source.parent / "base", folder, native_cache_dir)
                print(json.dumps(case | found), flush=True)
                shutil.rmtree(folder / "tokenizers", ignore_errors=True)
    faulthandler.cancel_dump_traceback_later()


def outcome(source: Path, base: Path, folder: Path, native_cache_dir: Path) -> dict[str, object]:
    before_bytes = psutil.Process().memory_info().rss
    found: dict[str, object] = {"found": "answered", "is_wrong": False}
    try:
        _answer(source, base, folder, native_cache_dir)
    except (LoadError, ModelError) as error:
        # Weights that do not fit show a gap in the checks before.
        is_wrong = not str(error) or isinstance(error, UnfitWeightsError)
        found = {"found": type(error).__name__, "is_wrong": is_wrong, "words": str(error)[:300]}
    except BaseException as error:  # noqa: BLE001 -- a Rust panic is none of Exception's
        trace = traceback.format_exc().strip().splitlines()[-12:]
        found = {"found": type(error).__name__, "is_wrong": True, "trace": "\n".join(trace)}
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    if grown_bytes > MOST_CASE_BYTES:
        found |= {"is_wrong": True, "grown_bytes": grown_bytes}
    release_freed_memory()
    return found


@torch.inference_mode()
def _answer(source: Path, base: Path, folder: Path, native_cache_dir: Path) -> None:
    """``base``: the model of an adapter, whose files ``source`` then are."""
    model = base if base.is_dir() else source
    spec = LoadSpec(job_id="1", model="m", source=f"path:{model}", devices=["cpu"])
    opened = open_model(spec, folder, lambda _: None)
    if isinstance(opened, OpenedEmbeddingModel):
        encoder = EmbeddingModel(opened.directory, opened.config, opened.device, opened.dtype)
        encoder.embed([torch.tensor(PROMPT)])
        return
    try:
        config = opened.config
        context_tokens = min(config.max_positions, CONTEXT_TOKENS)
        decoder, _ = build_fastest_model(config, opened.weights, context_tokens, native_cache_dir)
        if model is base:
            found = open_adapter(spec_of(source, "a"), config, folder, lambda _: None)
            decoder.prepare_adapter(found.weights)
        prompt = [token % config.vocab_size for token in PROMPT[:context_tokens]]
        kv = decoder.new_kv(1, BLOCK_TOKENS, NUM_LONE_STATES)
        logits = decoder.forward(StepInput.of_sequence(prompt, BLOCK_TOKENS), kv)
        assert logits.shape[-1] == config.vocab_size
    finally:
        opened.close()


if __name__ == "__main__":
    main()
