"""transformers on the same weights, dense: its ``generate``, and its continuous batching.

    python -m benchmarks.subjects.transformers MODEL.gguf FOLDER

``generate_batch`` makes a manager for each call, which is most of the call; a server keeps one, and
so does this. Its figures come from the token times that the manager itself records.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.subject import REPOSITORY_DIR
from benchmarks.subjects import (
    DECODE_CONCURRENCIES,
    DECODE_OUTPUT_TOKENS,
    DECODE_PROMPT_TOKENS,
    tokens_per_s_together,
)

LIBRARIES = ("torch", "transformers")
CPU_PAGE_TOKENS, CARD_PAGE_TOKENS = 32, 256
"""The card's is transformers' own choice, which its flash attention requires."""
SPARE_PAGES = 32
RESULT_TIMEOUT_S = 1.0


class TransformersContinuous:
    """Decoding only: a prompt takes the same path as ``generate``'s.

    By default the cache allocates nine tenths of the machine's memory and zeroes it; this one has
    room for the workload. ``torch.compile`` runs into its recompile limit: paged attention differs
    by layer.
    """

    keeps_prefixes = False

    def __init__(self, model: Any) -> None:
        import transformers

        self._model = model
        self._version = transformers.__version__
        self._manager: Any = model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=_cache_config(transformers, model.device.type),
        )
        self._manager.start()

    def describe(self) -> str:
        import torch

        dtype = str(self._model.dtype).removeprefix("torch.")
        attention = self._model.config._attn_implementation
        words = f"transformers {self._version} continuous batching, {dtype}, {attention}"
        on_cpu = self._model.device.type == "cpu"
        return f"{words}, {torch.get_num_threads()} threads" if on_cpu else words

    def decode(self, prompts: list[list[int]]) -> float:
        self._manager.add_requests(
            prompts, max_new_tokens=1 + DECODE_OUTPUT_TOKENS, record_timestamps=True
        )
        return tokens_per_s_together([self._next_timestamps() for _ in prompts])

    def first_token_s(self, prompt: list[int]) -> None:
        return

    def close(self) -> None:
        self._manager.stop(block=True)
        self._manager.destroy()

    def _next_timestamps(self) -> list[float]:
        """Without streaming, the manager delivers only finished requests."""
        while (result := self._manager.get_result(timeout=RESULT_TIMEOUT_S)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching thread has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        timestamps: list[float] = result.timestamps
        return timestamps


def _cache_config(transformers: Any, device_type: str) -> Any:
    """The workload's prompts share nothing, and sharing costs hashing."""
    page_tokens = CPU_PAGE_TOKENS if device_type == "cpu" else CARD_PAGE_TOKENS
    num_sequences = max(DECODE_CONCURRENCIES)
    sequence_tokens = DECODE_PROMPT_TOKENS + 1 + DECODE_OUTPUT_TOKENS
    return transformers.ContinuousBatchingConfig(
        page_size=page_tokens,
        num_blocks=num_sequences * -(-sequence_tokens // page_tokens) + SPARE_PAGES,
        max_batch_tokens=num_sequences * DECODE_PROMPT_TOKENS,
        max_requests_per_batch=num_sequences,
        allow_block_sharing=False,
    )


class TransformersGenerate:
    keeps_prefixes = False  # ``generate`` keeps nothing between calls

    def __init__(self, model: Any) -> None:
        import torch
        import transformers

        self._torch: Any = torch
        self._version = transformers.__version__
        self._model = model

    def describe(self) -> str:
        threads = self._torch.get_num_threads()
        dtype = str(self._model.dtype).removeprefix("torch.")
        return f"transformers {self._version} generate, {dtype}, {threads} threads"

    def decode(self, prompts: list[list[int]]) -> float:
        """The difference of a long and a one-token run: the prompt's time cancels out."""
        first_s = self._generate_s(prompts, 1)
        all_s = self._generate_s(prompts, 1 + DECODE_OUTPUT_TOKENS)
        return len(prompts) * DECODE_OUTPUT_TOKENS / (all_s - first_s)

    def first_token_s(self, prompt: list[int]) -> float:
        return self._generate_s([prompt], 1)

    def close(self) -> None:
        del self._model

    def _generate_s(self, batch: list[list[int]], num_tokens: int) -> float:
        input_ids = self._torch.tensor(batch)
        started = time.perf_counter()
        self._model.generate(
            input_ids,
            attention_mask=self._torch.ones_like(input_ids),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
        return time.perf_counter() - started


def open_subject(
    gguf: str, num_threads: str, batching: str, device: str = "cpu"
) -> TransformersContinuous | TransformersGenerate:
    """``gguf``: the file, or a folder of dense weights. ``batching``: continuous or none."""
    import torch

    torch.set_num_threads(int(num_threads))
    model = load_dequantised(Path(gguf)).to(device)
    return (
        TransformersContinuous(model) if batching == "continuous" else TransformersGenerate(model)
    )


WEIGHTS_FILE = "model.safetensors"


def main() -> None:
    gguf, folder = map(Path, sys.argv[1:])
    _save(gguf, folder)


def dequantised_folder(gguf: Path, data_dir: Path) -> Path:
    """Made once, in a process of its own."""
    folder = data_dir / "dequantised" / gguf.stem
    if not (folder / WEIGHTS_FILE).exists():
        command = [sys.executable, "-m", "benchmarks.subjects.transformers", str(gguf), str(folder)]
        subprocess.run(command, cwd=REPOSITORY_DIR, check=True)
    return folder


def fastest_dtype() -> Any:
    """bfloat16 where the processor multiplies it: there it is faster than float32 in every row."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.bfloat16 if has_bfloat16 else torch.float32


def load_dequantised(gguf: Path) -> Any:
    """A file is in its fastest dtype, a folder as it is."""
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
