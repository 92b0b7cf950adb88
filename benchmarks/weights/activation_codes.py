"""What rounding the activations costs, by rule:
``python -m benchmarks.weights.activation_codes GGUF``.

transformers runs the model in float32; hooks round what every projection is given, in groups of 32
of a row, as the native decoder's rules would. Decision 7 quotes the table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

GROUP = 32
COARSE_CODE, FINE_CODE = 127.0, 127.0 * 64.0
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEAKS = (0.0, 2.0, 3.0, 4.0, 6.0, float("inf"))
"""Times the row's root mean square: groups with a larger value are fine. 0: all, infinity: none."""
TEXT_FILES = ("docs/architecture.md", "docs/operating/models.md", "README.md")
TEXT_CHARS = 2000
LEAST_COSINE = 0.999


class Rounding:
    """Hooks for one rule; counts what it calls fine."""

    def __init__(self, peak: float) -> None:
        self._peak = peak
        self._num_groups = self._num_fine = 0

    def __call__(self, _module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        rows = given[0]
        groups = rows.reshape(*rows.shape[:-1], -1, GROUP)
        largest = groups.abs().amax(-1, keepdim=True)
        mean_square = rows.square().mean(-1)[..., None, None]
        is_fine = largest.square() > self._peak**2 * mean_square
        scales = (largest / torch.where(is_fine, FINE_CODE, COARSE_CODE)).clamp_min(1e-30)
        self._num_groups += is_fine.numel()
        self._num_fine += int(is_fine.sum())
        return ((torch.round(groups / scales) * scales).view_as(rows), *given[1:])

    @property
    def fine_share(self) -> float:
        return self._num_fine / self._num_groups


def measure(gguf: Path, show: Callable[[list[str]], None]) -> None:
    import transformers

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    prompts = [_prompt(tokenizer, name) for name in TEXT_FILES]

    def logits() -> torch.Tensor:
        return torch.cat([model(ids).logits[0] for ids in prompts])

    expected = logits()
    for peak in PEAKS:
        rounding = Rounding(peak)
        hooks = [
            module.register_forward_pre_hook(rounding)
            for name, module in model.named_modules()
            if name.endswith(PROJECTIONS)
        ]
        actual = logits()
        for hook in hooks:
            hook.remove()
        show([f"{peak:g}", f"{rounding.fine_share:.0%}", *_distances(actual, expected)])


def _prompt(tokenizer: Any, name: str) -> torch.Tensor:
    path = Path(__file__).resolve().parents[2] / name
    turns = [{"role": "user", "content": path.read_text(encoding="utf-8")[:TEXT_CHARS]}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids: torch.Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return ids


def _distances(actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    similarity = torch.nn.functional.cosine_similarity(actual, expected, dim=-1)
    divergence = torch.nn.functional.kl_div(
        actual.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    num_far = int((similarity < LEAST_COSINE).sum())
    return [f"{similarity.mean():.5f}", f"{num_far} of {len(similarity)}", f"{divergence:.5f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    table = Table("peak", "fine groups", "mean cosine", f"positions under {LEAST_COSINE}", "KL")
    with torch.inference_mode():
        measure(options.gguf, lambda row: table.add_row(*row))
    Console().print(table)


if __name__ == "__main__":
    main()
