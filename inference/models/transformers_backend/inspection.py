"""Detects the attention that a module of transformers needs by running it on torch's meta device,
with attention and mask functions that record their arguments. Whatever paged attention does not
compute is refused by name before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inference.models.errors import UnsupportedModuleError

INSPECTED = "helexa_inspected"
NUM_ROWS = 5
PASSED_OVER = frozenset(
    {
        *("dropout", "position_ids", "use_cache", "sliding_window", "is_causal"),
        *("output_router_logits", "output_attentions"),
    }
)
"""Arguments of attention that are ignored: masks reveal the windows."""
NEAR, FAR = 66, 70_000
"""Positions at which masks without a window are inspected."""

META = torch.device("meta")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    module: str
    layer: int
    kv_layer: int
    """The layer whose keys and values it attends to: itself, or an earlier one."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    soft_cap: float | None


@dataclass(frozen=True, slots=True)
class SeenMask:
    """Causal, and within ``window`` where there is one."""

    window: int | None

    def __getitem__(self, _: Any) -> SeenMask:
        return self


def inspect(model: Any) -> list[AttentionCall]:
    """By layer. ``model`` is on the meta device. Raises ``UnsupportedModuleError``."""
    from transformers import AttentionInterface, AttentionMaskInterface

    names = {module: name for name, module in model.named_modules()}
    calls: list[AttentionCall] = []
    owners: list[tuple[torch.Tensor, int | None]] = []

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        layer = getattr(module, "layer_idx", None)
        kv_layer = next((own for made, own in owners if made is key), layer)
        owners.append((key, kv_layer))
        heads, layers = (query, key, value), (layer, kv_layer)
        calls.append(_recorded(names[module], layers, heads, attention_mask, scaling, others))
        width = value.shape[-1]
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], width), None

    AttentionInterface.register(INSPECTED, attend)
    AttentionMaskInterface.register(INSPECTED, _seen_mask)
    model.set_attn_implementation(INSPECTED)
    try:
        _run(model)
    except UnsupportedModuleError:
        raise
    except Exception as error:
        raise UnsupportedModuleError(
            f"transformers' {type(model).__name__} does not run behind paged attention: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _by_layer(model, calls)


@torch.no_grad()
def _run(model: Any) -> None:
    rows = torch.arange(NUM_ROWS, device=META)[None]
    # A mask of padding is given, though nothing is padded: without it transformers would look for
    # several sequences in one row, by positions that have no numbers here.
    model(input_ids=rows, position_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False)


def _recorded(
    name: str,
    layers: tuple[int | None, int | None],
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: Any,
    scaling: float | None,
    others: dict[str, Any],
) -> AttentionCall:
    """``layers``: its own, and that of its keys. ``heads``: queries, keys and values."""
    (layer, kv_layer), (query, key, value) = layers, heads
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    head_dim, value_dim = query.shape[3], value.shape[3]
    soft_cap, sinks = others.pop("softcap", None), others.pop("s_aux", None)
    unknown = [key for key, value in others.items() if key not in PASSED_OVER and value is not None]
    shape = (1, num_kv_heads, NUM_ROWS)
    problems = {
        "does not pass its layer's index": layer is None,
        f"passes {', '.join(sorted(unknown))} to attention": bool(unknown),
        "makes masks of its own": not isinstance(mask, SeenMask),
        "is not causal": others.get("is_causal") is False,
        "attends to other rows than its own": key.shape[:3] != shape
        or value.shape[:3] != shape
        or query.shape[2] != NUM_ROWS,
        "has heads that do not share keys evenly": bool(num_heads % num_kv_heads),
        "has values wider than its keys": value_dim > head_dim,
        "has sinks of another shape": sinks is not None
        and (sinks.shape != (num_heads,) or soft_cap is not None),
    }
    if problem := next((words for words, is_there in problems.items() if is_there), None):
        raise UnsupportedModuleError(
            f"transformers' {name} {problem}, which paged attention does not follow"
        )
    return AttentionCall(
        module=name,
        layer=int(layer or 0),
        kv_layer=int(kv_layer or 0),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=head_dim**-0.5 if scaling is None else float(scaling),
        window=mask.window,
        soft_cap=None if soft_cap is None else float(soft_cap),
    )


def _by_layer(model: Any, calls: list[AttentionCall]) -> list[AttentionCall]:
    found = sorted(calls, key=lambda call: call.layer)
    num_layers = model.config.get_text_config().num_hidden_layers
    if [call.layer for call in found] != list(range(num_layers)):
        raise UnsupportedModuleError(
            f"transformers' {type(model).__name__} has {num_layers} layers and attends "
            f"{len(found)} times through its attention interface; only modules whose every layer "
            "attends once run behind paged attention"
        )
    return found


def _seen_mask(
    *,
    mask_function: Callable[..., torch.Tensor],
    local_size: int | None = None,
    **_: Any,
) -> SeenMask:
    """Checks the mask where rules other than causal, or causal within a window, would differ."""
    size = local_size or NEAR
    near = torch.arange(0, NEAR, device=CPU)
    edges = [size * times + offset for times in (1, 2, 3) for offset in (-2, -1, 0, 1)]
    edges += [FAR, FAR - size, FAR - size + 1]
    positions = torch.cat((near, torch.tensor(edges, device=CPU).clamp(min=0)))
    rows, context = positions[:, None], positions[None]
    zero = torch.zeros((), dtype=torch.int64, device=CPU)
    expected = context <= rows
    if local_size is not None:
        expected = expected & (context > rows - local_size)
    try:
        allowed = torch.as_tensor(mask_function(zero, zero, rows, context))
        is_known = torch.equal(allowed.broadcast_to(expected.shape), expected)
    except RuntimeError:
        is_known = False  # the rule reads the batch's values, and there are none
    if not is_known:
        raise UnsupportedModuleError(
            "the module masks attention by a rule other than causal or causal within a window, "
            "which paged attention does not follow"
        )
    return SeenMask(local_size)
