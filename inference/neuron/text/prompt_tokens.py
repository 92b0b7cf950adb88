"""A request's prompts as token ids: rendered, sized, tokenized and bounded, images among them.

    ChatInput ─▶ render ─▶ written ─▶ size ─▶ tokenize ─▶ placed ─▶ bounds
    TextInput ──────────────────────▶ size ─▶ tokenize
    TokensInput ──────────────────────────────────────────────────▶ bounds

A template writes one pad for each image (``written``), which becomes as many tokens as the image
has (``placed``). How many follows from its size, so nothing is decoded here. Pure but for the
tokenizer's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.neuron.errors import (
    RequestRefusedError,
    arguments_too_long,
    bad_token_id,
    prompt_too_long,
    text_too_long,
)
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import prompt_param
from inference.protocol.events import Failure, Tokenized
from inference.protocol.generation import ChatInput, TextInput, TokenizeRequest, TokensInput
from inference.protocol.images import (
    ImageLayout,
    ImageRatioError,
    ImageRef,
    SequenceImage,
    TokenRun,
    VisionInput,
    image_layout,
)
from inference.text.answers.phrases import opens_phrase
from inference.text.answers.reasoning import ANSWER_HEAD, opens_block
from inference.text.errors import TooManyTokensError
from inference.text.tokens.token_bytes import num_bytes
from inference.text.tokens.tokenizer import read_json_object

PARAM = "messages"


@dataclass(frozen=True, slots=True)
class PlacedImage:
    image: ImageRef
    runs: tuple[TokenRun, ...]
    grid: tuple[int, int, int]

    @property
    def num_tokens(self) -> int:
        return sum(run.num_tokens for run in self.runs)

    def with_data(self, data: bytes) -> SequenceImage:
        return SequenceImage(
            digest=self.image.digest,
            data=data,
            runs=list(self.runs),
            grid=self.grid,
        )


def check_sees(images: Sequence[ImageRef], vision: VisionInput | None) -> None:
    """Raises ``RequestRefusedError``."""
    if images and vision is None:
        message = "This model reads text only; it was sent an image."
        raise _refused("vision_unsupported", message)


def written(prompt: str, images: Sequence[ImageRef], vision: VisionInput | None) -> str:
    """``prompt`` as the template has it. What it writes for an image is replaced by what the model
    reads there. Raises ``RequestRefusedError``."""
    if vision is None or not images or not vision.placeholder:
        return prompt
    num_placeholders = prompt.count(vision.placeholder)
    if num_placeholders != len(images):
        raise _wrong_number(num_placeholders, len(images))
    texts = [vision.text_of(_layout(image, vision)) for image in images]
    first, *others = prompt.split(vision.placeholder)
    return first + "".join(text + other for text, other in zip(texts, others, strict=True))


def placed(
    token_ids: list[int], images: Sequence[ImageRef], vision: VisionInput | None
) -> tuple[list[int], list[PlacedImage]]:
    """``token_ids`` as the template has them. The pad of each run of an image is repeated once for
    each of its tokens. Raises ``RequestRefusedError``."""
    if vision is None or not images:
        return token_ids, []
    layouts = [_layout(image, vision) for image in images]
    pads = [index for index, token in enumerate(token_ids) if token == vision.pad_token_id]
    if len(pads) != (num_runs := sum(layout.num_runs for layout in layouts)):
        raise _wrong_number(len(pads), num_runs)
    places = iter(pads)
    whole: list[int] = []
    found: list[PlacedImage] = []
    rest = 0
    for image, layout in zip(images, layouts, strict=True):
        runs = []
        for _ in range(layout.num_runs):
            pad = next(places)
            whole += token_ids[rest:pad]
            run = TokenRun(len(whole), layout.num_tokens(vision.merge) // layout.num_runs)
            whole += [vision.pad_token_id] * run.num_tokens
            runs.append(run)
            rest = pad + 1
        found.append(PlacedImage(image, tuple(runs), layout.grid))
    return whole + token_ids[rest:], found


def _layout(image: ImageRef, vision: VisionInput) -> ImageLayout:
    try:
        return image_layout(
            image.width_px, image.height_px, vision, is_low_detail=image.is_low_detail
        )
    except ImageRatioError as error:
        raise _refused("invalid_image", str(error)) from None


def _wrong_number(num_pads: int, num_images: int) -> RequestRefusedError:
    """A text that holds the placeholder would move every image after it to another place."""
    if num_pads > num_images:
        message = "a text holds the words that stand for an image in this model's prompts"
        return _refused("invalid_value", message)
    message = (
        f"this model's chat template has no place for {num_images - num_pads} of {num_images} "
        "images"
    )
    return _refused("template_render_failed", message)


def sequence_images(
    found: Iterable[PlacedImage], data_of: Mapping[str, bytes]
) -> list[SequenceImage]:
    """Raises ``RequestRefusedError``: an image that is not there was kept too short, or Redis has
    lost it."""
    made = []
    for one in found:
        data = data_of.get(one.image.digest)
        if data is None:
            message = "an image of this request is not there any more; send it again"
            raise _refused("image_lost", message, param=None)
        made.append(one.with_data(data))
    return made


def _refused(code: str, message: str, *, param: str | None = PARAM) -> RequestRefusedError:
    return RequestRefusedError(Failure(code=code, message=message, param=param))


MAX_ARGUMENTS_CHARACTERS = 2**20
"""The longest arguments of one tool call. They are parsed and written again, each in one go for
which every other thread waits; all else that is done with a long conversation lets others pass."""


def prompt_tokens(
    given: ChatInput | TextInput | TokensInput, text: ModelText, max_tokens: int | None
) -> tuple[list[list[int]], list[PlacedImage]]:
    """``max_tokens`` of each; ``None``: any number. Only a chat has images."""
    match given:
        case ChatInput():
            prompt, images = _chat_tokens(given, text, max_tokens)
            return [_not_empty(prompt, "messages")], images
        case TextInput(texts=texts):
            return [_not_empty(_encoded(one, given, text, max_tokens)) for one in texts], []
        case TokensInput(prompts=prompts):
            return [
                _not_empty(checked_ids(token_ids, given, text, max_tokens)) for token_ids in prompts
            ], []


def _chat_tokens(
    chat: ChatInput, text: ModelText, max_tokens: int | None
) -> tuple[list[int], list[PlacedImage]]:
    images, vision = chat.images, text.report.vision
    if images:
        check_sees(images, vision)
    token_ids = _encoded(chat_prompt(chat, text, max_tokens), chat, text, max_tokens)
    found: list[PlacedImage] = []
    if images:
        token_ids, found = placed(token_ids, images, vision)
    if max_tokens is not None and len(token_ids) > max_tokens:
        failure = prompt_too_long(len(token_ids), text.limit, prompt_param(chat))
        raise RequestRefusedError(failure)
    return token_ids, found


def chat_prompt(chat: ChatInput, text: ModelText, max_tokens: int | None) -> str:
    """A thinking block that the template opens is closed before the answer's own first words."""
    prompt = _render(chat, text)
    if not chat.answer_start:
        return prompt
    token_ids = _encoded(prompt, chat, text, max_tokens)
    markers = text.markers
    if markers is not None and markers.channels is not None:
        prompt += ANSWER_HEAD
    elif markers is not None and opens_block(token_ids, markers, text.tokenizer):
        prompt += f"\n{markers.closes}\n\n"
    elif text.phrases is not None and opens_phrase(prompt, text.phrases):
        prompt += f"\n{text.phrases.closes[0]}\n\n"
    return prompt + chat.answer_start


def _encoded(
    one: str, given: ChatInput | TextInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    """The prompt's token ids. One that cannot fit by its size alone is refused before
    tokenizing."""
    tokenizer = text.tokenizer
    least_tokens = tokenizer.least_tokens(one)
    if max_tokens is not None and least_tokens > max_tokens:
        assert tokenizer.most_bytes_per_token is not None, "a bound that rests on nothing"
        failure = text_too_long(
            least_tokens,
            num_bytes(one),
            tokenizer.most_bytes_per_token,
            text.limit,
            prompt_param(given),
        )
        raise RequestRefusedError(failure)
    # Templates write special tokens themselves.
    adds_special_tokens = not isinstance(given, ChatInput)
    try:
        return tokenizer.encode(one, add_special_tokens=adds_special_tokens, max_tokens=max_tokens)
    except TooManyTokensError as error:
        failure = prompt_too_long(error.num_tokens, text.limit, prompt_param(given))
        raise RequestRefusedError(failure) from None


def _render(chat: ChatInput, text: ModelText) -> str:
    for message in chat.messages:
        for call in message.tool_calls:
            if len(call.arguments) > MAX_ARGUMENTS_CHARACTERS:
                raise RequestRefusedError(
                    arguments_too_long(len(call.arguments), MAX_ARGUMENTS_CHARACTERS)
                )
    return written(text.jobs.render(chat), chat.images, text.report.vision)


def checked_ids(
    token_ids: list[int], given: TokensInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    if max_tokens is not None and len(token_ids) > max_tokens:
        failure = prompt_too_long(len(token_ids), text.limit, prompt_param(given))
        raise RequestRefusedError(failure)
    vocab_size = text.report.vocab_size
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestRefusedError(bad_token_id(token_id, vocab_size))
    return token_ids


def _not_empty(token_ids: list[int], param: str = "prompt") -> list[int]:
    if not token_ids:
        raise _refused("empty_prompt", "the prompt holds no tokens", param=param)
    return token_ids


MAX_RETURNED_TOKENS = 1_000_000
"""Most tokens of one answer; beyond any context here."""


def tokenized(request_id: str, request: TokenizeRequest, text: ModelText) -> Tokenized:
    """Raises ``RequestRefusedError``."""
    joined_text = ""
    match request.input:
        case ChatInput() as chat:
            images, vision = chat.images, text.report.vision
            check_sees(images, vision)
            token_ids = _all_ids(chat_prompt(chat, text, None), request, text)
            token_ids, _ = placed(token_ids, images, vision)
        case TextInput(texts=texts):
            (one,) = texts
            token_ids = _all_ids(one, request, text)
        case TokensInput() as given:
            (token_ids,) = given.prompts
            checked_ids(token_ids, given, text, None)
            joined_text = _joined(token_ids, text)
    return Tokenized(
        request_id=request_id,
        token_ids=token_ids,
        context_tokens=text.report.context_tokens,
        text=joined_text,
        texts=[_joined([one], text) for one in token_ids] if request.shows_texts else None,
        settings=_settings(text) if request.shows_settings else None,
    )


def _settings(text: ModelText) -> dict[str, Any]:
    """The model's tokenizer_config.json, with the chat template that is used here."""
    settings = read_json_object(Path(text.report.tokenizer_dir) / "tokenizer_config.json")
    return settings | {"chat_template": text.templates.default}


def _all_ids(one: str, request: TokenizeRequest, text: ModelText) -> list[int]:
    try:
        return text.tokenizer.encode(
            one, add_special_tokens=request.adds_special_tokens, max_tokens=MAX_RETURNED_TOKENS
        )
    except TooManyTokensError as error:
        message = (
            f"the text has {error.num_tokens} tokens; at most {MAX_RETURNED_TOKENS} are returned"
        )
        raise _refused("invalid_value", message, param=prompt_param(request.input)) from None


def _joined(token_ids: list[int], text: ModelText) -> str:
    """Special tokens are written out, and bytes that are no character become U+FFFD."""
    pieces = b"".join(map(text.tokenizer.bytes_of, token_ids))
    return pieces.decode("utf-8", errors="replace")
