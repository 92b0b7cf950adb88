"""Counts the tokens of a request: upper bounds before its prompt is counted, its usage after.

The gateway has no tokenizer, so a prompt's sure bound is its bytes: no token is less than one byte
of text. The reservation is nearer to usual texts (``PromptRatios``): a neuron refuses a longer
prompt before computing (``Submit.max_prompt_tokens``), so no reservation is exceeded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from inference.protocol import events
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    PairsInput,
    Request,
    TextInput,
    TokensInput,
)
from inference.protocol.images import (
    ImageLayout,
    ImageRatioError,
    ImageRef,
    VisionInput,
    image_layout,
)
from inference.wire.upstream.answer_events import BYTES_A_TOKEN

TEMPLATE_TOKENS = 256
"""A template's own text: a default system prompt, the markers of the answer."""
TURN_TOKENS = 16
TOOLS_FACTOR = 3
"""Templates show tools with indentation, and explain how to call them."""
SPECIAL_TOKENS = 4
IMAGE_MARKERS = 6
UNKNOWN_VISION = VisionInput(
    pad_token_id=0, patch_px=14, merge=2, min_pixels=65_536, max_pixels=16_777_216
)
"""No known model makes more tokens of an image."""
FIRST_SHARE = 0.5
"""Until a prompt of the size was counted: text has a token in three to four bytes."""
LEAST_SHARE = 0.25
"""Short prompts differ much from one another."""
MARGIN = 1.25
FORGETTING = 1 / 64


class PromptRatios:
    """Tokens per byte of prompt, learned by model and by size in powers of two: short prompts are
    mostly template.

    A prompt's sure bound is its bytes, some four times the tokens of most texts. The reservation
    uses the largest share that prompts of this size had, and a margin. The neuron refuses a longer
    prompt before computing, with its length; then that is reserved.
    """

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], float] = {}

    def near(self, model: str, text_bound: int) -> int:
        share = self._shares.get((model, text_bound.bit_length()))
        share = FIRST_SHARE if share is None else max(LEAST_SHARE, share * MARGIN)
        return min(text_bound, math.ceil(text_bound * share))

    def observe(self, model: str, text_bound: int, num_tokens: int) -> None:
        if text_bound <= 0:
            return
        size = (model, text_bound.bit_length())
        seen = max(0, num_tokens) / text_bound
        share = self._shares.get(size, 0.0)
        self._shares[size] = seen if seen >= share else share + (seen - share) * FORGETTING


class TokenBounds(msgspec.Struct, frozen=True, kw_only=True):
    """``output_tokens`` is over all choices, ``None`` where the client set no limit; then
    ``default_output_tokens`` is the bound. ``exact_tokens`` of the prompt are known (images, token
    ids); ``text_bound`` is the sure bound of the rest, which has ``text_bytes``."""

    prompt_tokens: int
    output_tokens: int | None
    default_output_tokens: int
    num_choices: int
    exact_tokens: int = 0
    text_bound: int = 0
    text_bytes: int = 0

    @property
    def estimated_prompt_tokens(self) -> int:
        return self.exact_tokens + math.ceil(self.text_bytes / BYTES_A_TOKEN)

    def or_more(self, other: TokenBounds) -> TokenBounds:
        outputs = (self.output_tokens, other.output_tokens)
        named = [tokens for tokens in outputs if tokens is not None]
        return msgspec.structs.replace(
            self,
            prompt_tokens=max(self.prompt_tokens, other.prompt_tokens),
            output_tokens=max(named) if len(named) == len(outputs) else None,
            default_output_tokens=max(self.default_output_tokens, other.default_output_tokens),
        )

    def near(self, ratios: PromptRatios, model: str) -> int:
        return min(self.prompt_tokens, self.exact_tokens + ratios.near(model, self.text_bound))


def token_bounds(
    request: Request,
    *,
    context_tokens: int | None,
    max_output_tokens: int | None,
    catalogue_context_tokens: int | None = None,
    vision: VisionInput | None = None,
) -> TokenBounds:
    """The limits are the replica's; ``None``: not reported. An answer of no named length is also
    bounded by the catalogue's context and ``DEFAULT_OUTPUT_TOKENS``, whatever its neuron claims."""
    prompts = num_prompts(request)
    exact, text_bytes, text = _prompt_bounds(request, vision or UNKNOWN_VISION)
    prompt = exact + text
    if context_tokens is not None:
        prompt = min(prompt, prompts * context_tokens)
    choices, unnamed = prompts, 0
    named: int | None = 0
    if isinstance(request, GenerationRequest):
        choices = prompts * request.n
        limits = [limit for limit in (context_tokens, max_output_tokens) if limit is not None]
        most = min(limits, default=DEFAULT_OUTPUT_TOKENS)
        known = catalogue_context_tokens or DEFAULT_OUTPUT_TOKENS
        unnamed = min(most, DEFAULT_OUTPUT_TOKENS, known) * choices
        asked = request.sampling.max_tokens
        if asked is not None and request.ends_at_context:
            asked = min(asked, most)
        named = None if asked is None else asked * choices
    return TokenBounds(
        prompt_tokens=prompt,
        output_tokens=named,
        default_output_tokens=unnamed,
        num_choices=choices,
        exact_tokens=exact,
        text_bound=text,
        text_bytes=text_bytes,
    )


def fewest_tokens(request: Request) -> TokenBounds:
    n = num_prompts(request) * (request.n if isinstance(request, GenerationRequest) else 1)
    return TokenBounds(prompt_tokens=1, output_tokens=None, default_output_tokens=n, num_choices=n)


DEFAULT_OUTPUT_TOKENS = 1 << 20
"""Of an answer of no named length: more than any answer has."""


def num_prompts(request: Request) -> int:
    match request.input:
        case TextInput(texts=texts):
            return len(texts)
        case TokensInput(prompts=prompts):
            return len(prompts)
        case PairsInput(seconds=seconds):
            return len(seconds)
        case ChatInput():
            return 1


def _prompt_bounds(request: Request, vision: VisionInput) -> tuple[int, int, int]:
    """(known tokens, bytes of text, sure bound of that text's tokens)."""
    match request.input:
        case TokensInput(prompts=prompts):
            return sum(len(prompt) + SPECIAL_TOKENS for prompt in prompts), 0, 0
        case TextInput(texts=texts):
            given = sum(map(_utf8_bytes, texts))
            return 0, given, given + SPECIAL_TOKENS * len(texts)
        case PairsInput(pairs=pairs):
            given = sum(_utf8_bytes(text) for pair in pairs for text in pair)
            return 0, given, given + 2 * SPECIAL_TOKENS * len(pairs)
        case ChatInput() as chat:
            turns = [_without_parts(message) for message in chat.messages]
            tools = len(msgspec.json.encode(chat.tools)) if chat.tools else 0
            given = len(msgspec.json.encode(turns)) + tools
            given += len(msgspec.json.encode(chat.template_kwargs)) + _utf8_bytes(chat.answer_start)
            template = TEMPLATE_TOKENS + TURN_TOKENS * len(turns) + (TOOLS_FACTOR - 1) * tools
            layouts = [_layout(image, vision) for image in chat.images]
            known = [layout for layout in layouts if layout is not None]
            exact = len(layouts) * IMAGE_MARKERS
            exact += sum(layout.num_tokens(vision.merge) for layout in known)
            return exact, given, given + template + sum(map(vision.most_text_bytes, known))


def _layout(image: ImageRef, vision: VisionInput) -> ImageLayout | None:
    try:
        return image_layout(
            image.width_px, image.height_px, vision, is_low_detail=image.is_low_detail
        )
    except ImageRatioError:
        return None


def _without_parts(message: ChatMessage) -> ChatMessage:
    return msgspec.structs.replace(message, parts=[]) if message.parts else message


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


NOTHING = events.Usage(prompt_tokens=0, completion_tokens=0)


class UsageCounter:
    """Counts also after its client has left. ``on_accepted`` gets the prompt's length."""

    def __init__(self, on_accepted: Callable[[int], None] | None = None) -> None:
        self.usage: events.Usage = NOTHING
        self.first_token_s: float | None = None
        self.begun_s: float | None = None
        """``time.monotonic`` at the engine's begin, else at its neuron's; ``None``: not
        accepted."""
        self.trace = ""
        self.stage_times: events.StageTimes | None = None
        self.settled_s: float | None = None
        self._when_settled: list[Callable[[], None]] = []
        self._on_accepted = on_accepted
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._is_cut = False

    @property
    def is_settled(self) -> bool:
        return self.settled_s is not None

    def cut(self) -> None:
        """The client gets an error: later tokens are not billed."""
        self._is_cut = True

    def count(self, event: events.Event) -> None:
        if self.settled_s is not None:
            return
        match event:
            case events.Delta():  # most events are this one
                self._count_tokens(event.num_tokens)
            case events.Accepted():
                self.begun_s = time.monotonic()
                self._prompt_tokens = event.prompt_tokens
                if self._on_accepted is not None:
                    self._on_accepted(event.prompt_tokens)
            case events.PromptScored() | events.EmbeddedPart():
                pass
            case events.Traced():
                self.trace = event.text
            case events.StageTimes():
                self.stage_times = event
            case events.Finished():
                if event.timing is not None and self.begun_s is not None:
                    self.begun_s += event.timing.queue_ms / 1000
                self.settle(event.usage)
            case events.Embedded():
                self.settle(event.usage)
            case events.Failed() | events.Cancelled():
                self.settle(event.usage or NOTHING)
            case _ if isinstance(event, events.ANSWERS):
                self.settle(NOTHING)
            case _:
                self._count_tokens(getattr(event, "num_tokens", 0))

    def _count_tokens(self, num_tokens: int) -> None:
        if self._is_cut:
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self._completion_tokens += num_tokens

    def tokens(self) -> tuple[int, int, int, int]:
        """Those so far, in the order of ``entries.TOKENS``."""
        if self.is_settled:
            used = self.usage
            return (
                *(used.prompt_tokens, used.cached_tokens),
                *(used.completion_tokens, used.reasoning_tokens),
            )
        if self.first_token_s is None:
            return 0, 0, 0, 0
        return self._prompt_tokens, 0, self._completion_tokens, 0

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self.is_settled:
            callback()
        else:
            self._when_settled.append(callback)

    def settle_as_counted(self) -> None:
        """A prompt without a first token may not have been computed, so it costs nothing."""
        if self.is_settled:
            return
        if self.first_token_s is None:
            self.settle(NOTHING)
        else:
            self.settle(
                events.Usage(
                    prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens
                )
            )

    def settle(self, usage: events.Usage) -> None:
        self.usage = self._until_cut(usage) if self._is_cut else usage
        self.settled_s = time.monotonic()
        # These break a cycle: the callbacks' request refers to its counter.
        self._on_accepted = None
        callbacks, self._when_settled = self._when_settled, []
        for callback in callbacks:
            callback()

    def _until_cut(self, usage: events.Usage) -> events.Usage:
        if self.first_token_s is None:
            return NOTHING
        return msgspec.structs.replace(
            usage,
            completion_tokens=min(usage.completion_tokens, self._completion_tokens),
            reasoning_tokens=min(usage.reasoning_tokens, self._completion_tokens),
        )
