"""Projections and embeddings over stored weights: which kernel each phase runs.

    stored             decode rows                prefill rows
    packed, on CUDA    a Triton kernel            bfloat16 copy; else the weight written out
      or, where the card does not run it or torch's kernel is the faster there:
    4 bits             int4_matmul                bfloat16 copy; else as decode rows
    8 bits, Q5_0       int8_matmul                bfloat16 copy; else as decode rows
    all other packed   as dense
    dense              dense_matmul               dense_matmul
    dense, fp8 wanted  fp8_matmul                 fp8_matmul; an output head as dense
    experts, on CUDA   a Triton kernel for all experts of a layer, packed as they are stored

A copy is made of what torch's kernels take, where the hardware multiplies bfloat16 and the memory
suffices. The choice is made once, when the weight is packed; never by batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from inference.models.cuda.trials import ExpertTrials, PackedTrials, has_expert_kernel
from inference.models.errors import UnlikeKernelsError
from inference.models.layers.kernels import (
    as_grouped,
    dense_matmul,
    fp8_matmul,
    fp8_reason,
    fp8_rows,
    has_fast_bfloat16,
    int4_kernel_reason,
    int4_matmul,
    int8_matmul,
    kernel_bits,
    pack_int4,
)
from inference.models.stored_weights import (
    DenseWeight,
    ExpertWeight,
    GroupedWeight,
    PackedWeight,
    StoredWeight,
    with_tensors,
    written_out,
)
from inference.models.weight_source import GroupedProduct, Linear, dense_product


class DenseLinear:
    """The weight's dtype may be narrower than the activations': the result is widened again."""

    is_phaseless = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """``weight`` (out_features, in_features); ``bias`` (out_features,) of the same dtype."""
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return dense_matmul(x, self.weight, self.bias)

    prefill = decode


class QuantizedLinear:
    """``prefill_weight``: the bfloat16 copy for prompts, (out, in)."""

    def __init__(
        self, weight: GroupedWeight, device: torch.device, dtype: torch.dtype, *, prefill_copy: bool
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.bits = kernel_bits(weight)
        self.packed, self.scales_and_zeros = pack_int4(weight, device)
        self.bias = None if weight.bias is None else weight.bias.to(device, dtype)
        self.prefill_weight = (
            weight.dequantize().to(device, torch.bfloat16) if prefill_copy else None
        )
        self.is_phaseless = self.prefill_weight is None

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        matmul = int4_matmul if self.bits == 4 else int8_matmul
        product = matmul(x, self.packed, self.scales_and_zeros)
        return product if self.bias is None else product + self.bias

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        if self.prefill_weight is None:
            return self.decode(x)
        product = dense_matmul(x, self.prefill_weight, None)
        return product if self.bias is None else product + self.bias


class Fp8Linear:
    is_phaseless = True

    def __init__(self, weight: DenseWeight, device: torch.device, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self.codes, self.scales = fp8_rows(weight.weight.to(device))
        self.bias = None if weight.bias is None else weight.bias.to(device, dtype)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        product = fp8_matmul(x, self.codes, self.scales)
        return product if self.bias is None else product + self.bias

    prefill = decode


class StackedLinear:
    """Weights stored in different formats, side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = list(parts)
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.is_phaseless = all(part.is_phaseless for part in parts)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.decode(x) for part in self.parts], dim=-1)

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.prefill(x) for part in self.parts], dim=-1)


KernelChoice = Callable[[Callable[[], bool]], bool]
"""Takes this process' decision, and returns the one that all ranks follow."""


def chosen_here(decide: Callable[[], bool]) -> bool:
    return decide()


class LinearFactory:
    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        prefill_copies: bool = True,
        exact: bool = False,
        fp8: bool = False,
    ) -> None:
        """``prefill_copies=False`` saves the memory of bfloat16 copies; prompts are slower.
        ``exact``: all in ``dtype``, dequantised. ``fp8``: dense projections are rounded to it."""
        assert not (exact and fp8)
        self.device = device
        self.dtype = dtype
        self._exact = exact
        self._fp8 = fp8
        self.prefill_copies = prefill_copies and has_fast_bfloat16(device)
        may_pack = device.type == "cuda" and not exact
        self.packed_trials = PackedTrials(device, dtype) if may_pack else None
        self.expert_trials = ExpertTrials(device, dtype) if has_expert_kernel(device) else None
        self.choose_kernel: KernelChoice = chosen_here
        """Chooses the kernel of packed weights; ``True``: ours."""
        self.copied_bytes = 0

    def linear(self, stored: StoredWeight, *, prefills: bool = True) -> tuple[Linear, str]:
        """Also the kernel in words. ``prefills=False``: a head. Raises ``UnlikeKernelsError``."""
        if isinstance(stored, DenseWeight):
            if self._fp8 and prefills and fp8_reason(stored.shape) is None:
                return Fp8Linear(stored, self.device, self.dtype), "rounded to fp8, fp8 products"
            return self._dense(stored), f"{_word(self._matmul_dtype(stored))} products"
        grouped = as_grouped(stored)
        reason = self._dense_reason(stored, grouped)
        # Only of weights that torch's kernels take: memory estimates count no other copies.
        copies = reason is None and self.prefill_copies and prefills
        phases = ""
        if copies:
            phases = ", prompts on a bfloat16 copy"
            self.copied_bytes += stored.codes.numel() * torch.bfloat16.itemsize
        if self.packed_trials is not None:
            triton_reason = self.packed_trials.reason_against(stored)
            is_dense = reason is not None

            def is_best() -> bool:
                runs = triton_reason is None
                return runs and (is_dense or not self._is_torch_faster(stored, grouped))

            if self.choose_kernel(is_best):
                if triton_reason is not None:
                    raise UnlikeKernelsError(
                        f"rank 0 multiplies {stored.bits}-bit weights packed, which {self.device} "
                        f"does not: {triton_reason}"
                    )
                words = f"{stored.bits}-bit codes in a Triton kernel{phases}"
                return self._packed(stored, prefill_copy=copies), words
            if reason and triton_reason:
                reason = f"{reason}; {triton_reason}"
        if reason:
            dense = DenseWeight(weight=stored.dequantize(), bias=stored.bias)
            return self._dense(dense), f"dequantised: {reason}"
        assert grouped is not None
        linear = QuantizedLinear(grouped, self.device, self.dtype, prefill_copy=copies)
        return linear, f"{linear.bits}-bit kernel{phases}"

    def grouped(
        self, stored: Callable[[int], ExpertWeight], num_experts: int
    ) -> tuple[GroupedProduct, str]:
        """``stored``: experts' weights, without biases, stored alike. Also the kernel in words."""
        if self._exact:
            packed = stored

            def stored(index: int) -> ExpertWeight:
                return DenseWeight(weight=written_out(packed(index)))

        if self.expert_trials is None:
            reason: str | None = "no kernel for experts is built for this device"
        else:
            reason = self.expert_trials.reason_against(stored(0))
            if reason is None:
                return self.expert_trials.product(stored, num_experts)
        product = dense_product(stored, num_experts, self.device, self.dtype)
        return product, f"dense in torch's grouped product: {reason}"

    def embedding(self, stored: StoredWeight) -> StoredEmbedding:
        return StoredEmbedding(stored, self)

    def _is_torch_faster(self, stored: PackedWeight, grouped: GroupedWeight | None) -> bool:
        assert self.packed_trials is not None
        assert grouped is not None, "torch has a kernel for it"

        def torch_linear() -> Linear:
            return QuantizedLinear(grouped, self.device, self.dtype, prefill_copy=False)

        return self.packed_trials.is_slower(stored, torch_linear)

    def _packed(self, stored: PackedWeight, *, prefill_copy: bool) -> Linear:
        from inference.models.cuda.packed import PackedLinear  # triton, where there is a card

        return PackedLinear(stored, self.device, self.dtype, prefill_copy=prefill_copy)

    def _dense(self, stored: DenseWeight) -> DenseLinear:
        dtype = self._matmul_dtype(stored)
        weight = stored.weight.to(self.device, dtype)
        bias = None if stored.bias is None else stored.bias.to(self.device, dtype)
        return DenseLinear(weight, bias)

    def _dense_reason(self, stored: PackedWeight, grouped: GroupedWeight | None) -> str | None:
        if self._exact:
            return f"{_word(self.dtype)} products were asked for"
        if grouped is None:
            return f"torch has no kernel for {stored.bits}-bit codes of this kind"
        return int4_kernel_reason(grouped, self.device)

    def _matmul_dtype(self, stored: DenseWeight) -> torch.dtype:
        """bfloat16 weights stay so under float32 activations where the hardware multiplies them."""
        narrow = stored.weight.dtype == torch.bfloat16 and has_fast_bfloat16(self.device)
        return torch.bfloat16 if narrow and not self._exact else self.dtype


class StoredEmbedding:
    """Rows are dequantised as they are looked up, exactly."""

    def __init__(self, stored: StoredWeight, factory: LinearFactory) -> None:
        self._factory = factory
        self._table = with_tensors(stored, lambda tensor: tensor.to(factory.device))
        # A head is packed from the files' own layout; a dense one is the table itself.
        self._head = self._table if isinstance(stored, DenseWeight) else stored

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = with_tensors(self._table, lambda tensor: tensor.index_select(0, token_ids))
        return written_out(rows).to(self._factory.dtype)

    def as_linear(self) -> Linear:
        linear, _ = self._factory.linear(self._head, prefills=False)
        return linear


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
