"""The GGUF dequantised by transformers: in memory for its own rows, as a folder for vLLM's.

``python -m benchmarks.weights.dequantised MODEL.gguf FOLDER`` writes the folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.subject import REPOSITORY_DIR

WEIGHTS_FILE = "model.safetensors"


def main() -> None:
    gguf, folder = map(Path, sys.argv[1:])
    _save(gguf, folder)


def dequantised_folder(gguf: Path, data_dir: Path) -> Path:
    """A folder with ``gguf``'s weights in safetensors; made once, in a process of its own."""
    folder = data_dir / "dequantised" / gguf.stem
    if not (folder / WEIGHTS_FILE).exists():
        command = [sys.executable, "-m", "benchmarks.weights.dequantised", str(gguf), str(folder)]
        subprocess.run(command, cwd=REPOSITORY_DIR, check=True)
    return folder


def fastest_dtype() -> Any:
    """bfloat16 where the processor multiplies it: there it is faster than float32 in every row."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.bfloat16 if has_bfloat16 else torch.float32


def load_dequantised(gguf: Path) -> Any:
    """transformers' model, dense: of a file in its fastest dtype, of a folder as it is."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if gguf.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(gguf, dtype="auto")
    return transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=fastest_dtype()
    )


def _save(gguf: Path, folder: Path) -> None:
    """``save_pretrained`` refuses a model that came from a GGUF, dense or not."""
    from safetensors.torch import save_file

    model = load_dequantised(gguf)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    config: dict[str, Any] = model.config.to_dict() | {"architectures": [type(model).__name__]}
    config.pop("quantization_config", None)
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    # Renamed only when it is complete, which the next run checks.
    unfinished = folder / "unfinished.safetensors"
    save_file(weights, unfinished, metadata={"format": "pt"})
    unfinished.rename(folder / WEIGHTS_FILE)


if __name__ == "__main__":
    main()
