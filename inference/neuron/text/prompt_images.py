"""The images of a prompt: what is written for them, and where their tokens are.

A template writes one pad for each image (``written``), which becomes as many tokens as the image
has (``placed``). How many follows from its size, so nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inference.neuron.errors import RequestRefusedError, refused
from inference.protocol.images import (
    ImageLayout,
    ImageRatioError,
    ImageRef,
    SequenceImage,
    TokenRun,
    VisionInput,
    image_layout,
)


@dataclass(frozen=True, slots=True)
class PlacedImage:
    image: ImageRef
    runs: tuple[TokenRun, ...]
    grid: tuple[int, int, int]


def check_sees(images: Sequence[ImageRef], vision: VisionInput | None) -> None:
    """Raises ``RequestRefusedError``."""
    if images and vision is None:
        message = "This model reads text only; it was sent an image."
        raise refused("vision_unsupported", message)


def written(prompt: str, images: Sequence[ImageRef], vision: VisionInput | None) -> str:
    """Replaces the template's placeholders by what the model reads for each image. Raises
    ``RequestRefusedError``."""
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
    """Repeats the pad of each run of an image once for each of its tokens. Raises
    ``RequestRefusedError``."""
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
        raise refused("invalid_image", str(error)) from None


def _wrong_number(num_pads: int, num_images: int) -> RequestRefusedError:
    """A text that contains the placeholder would shift every image after it."""
    if num_pads > num_images:
        message = "a text holds the words that stand for an image in this model's prompts"
        return refused("invalid_value", message)
    message = (
        f"this model's chat template has no place for {num_images - num_pads} of {num_images} "
        "images"
    )
    return refused("template_render_failed", message)


def sequence_images(
    found: Iterable[PlacedImage], data_of: Mapping[str, bytes]
) -> list[SequenceImage]:
    """Raises ``RequestRefusedError`` for an image that Redis has lost."""
    made = []
    for one in found:
        data = data_of.get(one.image.digest)
        if data is None:
            message = "an image of this request is not there any more; send it again"
            raise refused("image_lost", message, param=None)
        digest, runs = one.image.digest, list(one.runs)
        made.append(SequenceImage(digest=digest, data=data, runs=runs, grid=one.grid))
    return made
