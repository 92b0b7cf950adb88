"""What one request may use at most: charged on its limits, reserved on its caps, and sent to its
neuron, which refuses a longer prompt before anything is computed.

    reserve, near the expected length ─▶ the neuron counts ─┬▶ accepted: narrowed, learned
                ▲                                           └▶ longer than was reserved
                └──────────── extend, by the count, once ◀───┘
"""

from __future__ import annotations

from dataclasses import replace

from inference.gateway.gateway import Gateway
from inference.gateway.request.answer_check import UsageBounds
from inference.gateway.request.call import Call
from inference.gateway.request.token_bounds import DEFAULT_OUTPUT_TOKENS, TokenBounds
from inference.wire.errors import ApiError, RequestFailedError
from metering.ledger.entries import Granted

OVER_BUDGET = "insufficient_quota"
"""The code by which a neuron refuses a prompt that is longer than its reservation."""
MAX_TEMPLATE_TOKENS = 65_536
"""By how much a template may make a prompt longer than its text, where nothing is reserved: the
context is the one that the neuron reports."""


class TokenBudget:
    """Belongs to one event loop. ``reserve``, then the rest."""

    def __init__(self, gateway: Gateway, call: Call, model: str) -> None:
        """``model``: whose tokenizer counts."""
        self._gateway = gateway
        self._call = call
        self._model = model
        self._sure: TokenBounds | None = None
        self._reserved: TokenBounds | None = None
        """As ``_sure``, with the prompt that is reserved."""
        self._granted: Granted | None = None
        self._is_extended = False

    @property
    def is_reserved(self) -> bool:
        return self._reserved is not None

    async def reserve(self, sure: TokenBounds) -> None:
        """Raises ``ApiError``."""
        charge, reserved = self._call.token_charge, sure
        if charge is not None:
            reserved = replace(
                sure,
                prompt_tokens=charge.prompt_tokens,
                default_output_tokens=min(sure.default_output_tokens, charge.output_tokens),
            )
        elif self._call.who.budgets:
            near = sure.near(self._gateway.prompt_ratios, self._model)
            reserved = replace(sure, prompt_tokens=near)
        await self._reserve_on_caps(reserved)
        self._sure, self._reserved = sure, reserved

    async def extends(self, error: ApiError) -> bool:
        """Whether the neuron refused the prompt as longer than was reserved, and now its length is
        reserved. Raises ``ApiError`` where it cannot be."""
        sure, reserved = self._sure, self._reserved
        if sure is None or reserved is None or self._is_extended or error.code != OVER_BUDGET:
            return False
        if not isinstance(error, RequestFailedError) or self.max_prompt_tokens is None:
            return False
        counted = error.failure.num_prompt_tokens
        prompt_tokens = sure.prompt_tokens if counted is None else counted
        if not reserved.prompt_tokens < prompt_tokens <= sure.prompt_tokens:
            return False
        self._is_extended = True
        if self._call.token_charge is not None:
            await self._gateway.limits.extend(self._call, prompt_tokens)
        reserved = replace(reserved, prompt_tokens=prompt_tokens)
        await self._reserve_on_caps(reserved)
        self._reserved = reserved
        return True

    async def _reserve_on_caps(self, bounds: TokenBounds) -> None:
        if self._call.is_billed:
            self._granted = await self._gateway.accounting.reserve(self._call, bounds)

    def accepted(self, prompt_tokens: int) -> None:
        """The neuron has counted the prompt: the excess is released."""
        sure, reserved, granted = self._sure, self._reserved, self._granted
        assert sure is not None and reserved is not None, "a request that reserved nothing"
        self._gateway.prompt_ratios.observe(
            self._model, sure.text_bound, prompt_tokens - sure.exact_tokens
        )
        if granted is not None and prompt_tokens < reserved.prompt_tokens:
            self._gateway.accounting.narrow(
                self._call, prompt_tokens=prompt_tokens, output_tokens=granted.output_tokens
            )

    @property
    def max_prompt_tokens(self) -> int | None:
        """What its neuron refuses more than; ``None``: nothing is reserved."""
        if self._reserved is None or (self._granted is None and self._call.token_charge is None):
            return None
        return self._reserved.prompt_tokens

    @property
    def cap_output_tokens(self) -> int | None:
        """What each choice may have, where the client named no number."""
        reserved = self._reserved
        if reserved is None or reserved.output_tokens is not None:
            return None
        return self._output_tokens(reserved) // reserved.num_choices

    def _output_tokens(self, reserved: TokenBounds) -> int:
        if self._granted is not None:
            return self._granted.output_tokens
        named = reserved.output_tokens
        return reserved.default_output_tokens if named is None else named

    def usage_bounds(self, *, num_prompts: int, context_tokens: int | None) -> UsageBounds:
        """What the neuron may report at most. Where nothing is reserved it refuses no prompt that
        its template makes longer than the gateway's bound, by ``MAX_TEMPLATE_TOKENS``. A token that
        stops a choice counts, and may come after the last one that was asked for."""
        reserved = self._reserved
        assert reserved is not None, "a request that reserved nothing"
        prompt_tokens = self.max_prompt_tokens
        if prompt_tokens is None:
            in_context = num_prompts * (context_tokens or DEFAULT_OUTPUT_TOKENS)
            rendered = reserved.prompt_tokens + num_prompts * MAX_TEMPLATE_TOKENS
            prompt_tokens = max(reserved.prompt_tokens, min(in_context, rendered))
        return UsageBounds(
            prompt_tokens=prompt_tokens,
            output_tokens=self._output_tokens(reserved) + reserved.num_choices,
        )
