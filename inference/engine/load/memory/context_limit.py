"""How long a prompt and its answer may be together: the least of what bounds it, and why.

Pure arithmetic. The number is found once, when the model is loaded, and stays while its engine
lives: the load report carries it, the gateway advertises it from there, and the neuron and the
engine enforce the same one. A live average never moves it under a client; the next load, which
starts from that average, may find another.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.protocol.load import PrefillSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBound:
    """The longest prompt may take ``max_prefill_s`` by ``speed``. ``is_average``: over the requests
    of an earlier run, else measured by this load's first steps."""

    speed: PrefillSpeed
    max_prefill_s: float | None
    is_average: bool

    def tokens(self, at_most: int) -> int:
        if self.max_prefill_s is None:
            return at_most
        return self.speed.longest_prompt(self.max_prefill_s, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBounds:
    model_tokens: int
    operator_tokens: int | None
    kv_tokens: int
    prefill: PrefillBound | None

    @property
    def tokens(self) -> int:
        return min(self.kv_tokens, self.unbound_by_kv_tokens)

    @property
    def unbound_by_kv_tokens(self) -> int:
        """What KV memory need be found for."""
        wanted = min(self.model_tokens, self.operator_tokens or self.model_tokens)
        return wanted if self.prefill is None else self.prefill.tokens(wanted)

    def reason(self) -> str:
        """``8192 tokens: the model's own; KV memory holds 125,952; a prompt of 8,192 takes 12 s of
        the 300 s allowed (1,005 and 640 tokens/s …)``"""
        parts = [self._binding(), f"KV memory holds {self.kv_tokens:,}"]
        if self.prefill is not None:
            parts.append(_prefill_words(self.prefill, self.tokens))
        return f"{self.tokens:,} tokens: " + "; ".join(parts)

    def _binding(self) -> str:
        tokens = self.tokens
        if tokens == self.model_tokens:
            return "the model's own"
        if tokens == self.operator_tokens:
            return f"the operator's clamp on the model's {self.model_tokens:,}"
        what = "KV memory" if tokens == self.kv_tokens else "prompt speed"
        return f"bound by {what}, the model's own are {self.model_tokens:,}"


def _prefill_words(bound: PrefillBound, tokens: int) -> str:
    source = "average of earlier requests" if bound.is_average else "measured as it was loaded"
    rate = f"{bound.speed.tokens_per_s(tokens):,.0f} tokens/s, {source}"
    allowed = "" if bound.max_prefill_s is None else f" of the {bound.max_prefill_s:g} s allowed"
    return f"a prompt that long takes {bound.speed.prompt_s(tokens):.3g} s{allowed} ({rate})"
