"""The tensors of layers that keep a state in the place of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from inference.models.config import ModelConfig
from inference.models.families.roles import Section, TensorRole, column, row
from inference.models.layers.configs import DeltaConfig


def delta_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """The tensors of a Gated DeltaNet layer."""
    delta, hidden = config.delta, config.hidden_size
    assert delta is not None
    prefix, names, heads = "linear_attn.", delta.names, delta.num_value_heads
    keys = _of_key_heads(delta, delta.key_head_dim)
    of_heads, values = _of_value_heads(delta, 1), _of_value_heads(delta, delta.value_head_dim)
    conv = keys, keys, *values
    if names.is_qkvz_grouped:
        each = 2 * (delta.key_features + delta.value_features) // delta.num_key_heads
        yield from column(prefix + names.qkvz[0], hidden, _of_key_heads(delta, each))
    else:
        yield from column(prefix + names.qkvz[0], hidden, *conv)
        yield from column(prefix + names.qkvz[1], hidden, *values)
    for name in names.ba:
        shape = 2 * heads // len(names.ba), hidden
        both = (_of_key_heads(delta, 2 * heads // delta.num_key_heads),)
        sections = both if names.is_ba_grouped else of_heads
        yield TensorRole(f"{prefix}{name}.weight", "state", shape, sections=sections)
    channels, kernel = delta.conv_channels, delta.conv_kernel
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (channels, 1, kernel), sections=conv)
    yield TensorRole(f"{prefix}{names.decay}", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}dt_bias", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}norm.weight", "norm", (delta.value_head_dim,))
    yield from row(f"{prefix}out_proj", hidden, *values)


def _of_value_heads(delta: DeltaConfig, width: int) -> tuple[Section, ...]:
    """Features of all value heads, ``width`` each, with the key head that each belongs to:

    by key head   [ 0 0 1 1 2 2 ]    tiled   [ 0 1 2 ][ 0 1 2 ]
    """
    per_key_head = delta.num_value_heads // delta.num_key_heads
    if delta.are_value_heads_tiled:
        return (_of_key_heads(delta, width),) * per_key_head
    return (_of_key_heads(delta, per_key_head * width),)


def _of_key_heads(delta: DeltaConfig, width: int) -> Section:
    return Section("key_heads", delta.num_key_heads, width)


def conv_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """The tensors of a short convolution."""
    conv, hidden = config.short_conv, config.hidden_size
    assert conv is not None
    channels, has_bias = Section("channels", conv.channels), conv.has_bias
    yield from column("conv.in_proj", hidden, *(channels,) * 3, has_bias=has_bias)
    shape = conv.channels, 1, conv.kernel
    yield TensorRole("conv.conv.weight", "conv", shape, sections=(channels,))
    if has_bias:
        yield TensorRole("conv.conv.bias", "conv", shape[:1], sections=(channels,))
    yield from row("conv.out_proj", hidden, channels, has_bias=has_bias)


def mamba_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Yields the tensors of a Mamba-2 layer. They are not divided among ranks: the norm is of many
    heads together."""
    mamba, hidden = config.mamba, config.hidden_size
    assert mamba is not None
    prefix, heads, channels = f"{mamba.prefix}.", (mamba.num_heads,), (mamba.conv_channels,)
    projected = mamba.projected_features
    yield TensorRole(f"{prefix}in_proj.weight", "column", (projected, hidden))
    yield TensorRole(f"{prefix}out_proj.weight", "row", (hidden, mamba.features))
    if mamba.has_bias:
        yield TensorRole(f"{prefix}in_proj.bias", "column", (projected,))
        yield TensorRole(f"{prefix}out_proj.bias", "row_bias", (hidden,))
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (*channels, 1, mamba.conv_kernel))
    if mamba.has_conv_bias:
        yield TensorRole(f"{prefix}conv1d.bias", "conv", channels)
    # GGUF holds vectors of heads as columns, and the norm's numbers group by group.
    for name in (mamba.decay, "dt_bias", "D"):
        yield TensorRole(prefix + name, "state", heads, may_be_folded=True)
    yield TensorRole(f"{prefix}norm.weight", "norm", (mamba.features,), may_be_folded=True)
