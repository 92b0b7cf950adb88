"""Admission: checks a sequence's request and the queue's length. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from inference.engine.adapters import Adapters
from inference.engine.prompt_images import PromptImages
from inference.engine.scheduling.scheduler import Scheduler
from inference.models.vision_config import VisionConfig
from inference.protocol.engine import SubmitSequence
from inference.protocol.images import SequenceImage, num_image_tokens


@dataclass(frozen=True, slots=True)
class EngineLimits:
    context_tokens: int
    vocab_size: int
    vision: VisionConfig | None = None
    """``None`` for models that read text alone."""


def command_problem(
    command: SubmitSequence, limits: EngineLimits, scheduler: Scheduler, adapters: Adapters
) -> tuple[str, str] | None:
    """Returns code and message for the client where the sequence is refused."""
    problem = _prompt_problem(command.token_ids, limits)
    problem = problem or _token_id_problem(command, limits.vocab_size)
    if problem is None and command.images:
        problem = image_problem(command.images, command.token_ids, limits.vision)
    if problem is not None:
        return problem
    if command.adapter is not None and (reason := adapters.problem()) is not None:
        return "model_load_failed", reason
    if scheduler.is_full:
        return "queue_full", f"{len(scheduler.waiting)} sequences are waiting, as many as may"
    if scheduler.is_full_for(command.account):
        queue = scheduler.limits
        return "rate_limit_exceeded", (
            f"{scheduler.waiting.num_of(command.account)} sequences of this account are waiting; "
            f"one account may have {queue.max_queue_depth_per_account} of the "
            f"{queue.max_queue_depth} places"
        )
    return None


def _prompt_problem(token_ids: list[int], limits: EngineLimits) -> tuple[str, str] | None:
    if not token_ids:
        return "bad_token_id", "the prompt has no tokens"
    # Two passes in C: a long prompt must not hold up the step.
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < limits.vocab_size:
            outside = f"token id {token_id} is outside the vocabulary of {limits.vocab_size}"
            return "bad_token_id", outside
    if len(token_ids) + 1 > limits.context_tokens:
        return "context_length_exceeded", (
            f"the prompt has {len(token_ids)} tokens and at least one is to be generated, "
            f"but the context holds {limits.context_tokens} tokens"
        )
    return None


def _token_id_problem(command: SubmitSequence, vocab_size: int) -> tuple[str, str] | None:
    """Checks the token ids beside the prompt's: one out of range would index another row of scores,
    or beyond the embedding table."""
    params = command.params
    thinking = params.thinking_limit
    by_field = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "prediction": command.prediction,
        "thinking_limit": [] if thinking is None else [thinking.end_token_id],
    }
    for field, token_ids in by_field.items():
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                outside = f"token id {token_id} is outside the vocabulary of {vocab_size}"
                return "bad_token_id", f"{field}: {outside}"
    return None


def image_problem(
    images: Ordered[SequenceImage], token_ids: list[int], vision: VisionConfig | None
) -> tuple[str, str] | None:
    """Returns code and message for the client where a prompt with these images can never run."""
    if not images:
        return None
    if vision is None:
        return "vision_unsupported", "this model reads text only"
    end = 0
    for image in images:
        num_tiles, height, width = image.grid
        is_even = num_tiles > 0 and height % vision.merge == 0 and width % vision.merge == 0
        if not is_even or image.num_tokens != num_image_tokens(image.grid, vision.merge):
            return "invalid_image", "an image's size and its number of tokens do not fit"
        is_within = num_tiles <= vision.most_tiles and height * width <= vision.most_patches
        if not image.num_tokens > 0 or not is_within:
            return "invalid_image", "an image has more pixels than the model is given"
        if vision.mrope_section is not None and len(image.runs) > 1:
            return "invalid_image", "an image's tokens are apart, and have places of their own"
        for run in image.runs:
            pads = token_ids[run.first_token : run.end]
            is_inside = end <= run.first_token and run.end <= len(token_ids)
            if not is_inside or set(pads) != {vision.image_token_id}:
                return "invalid_image", "an image's tokens are not where the prompt has them"
            end = run.end
    return None


def prompt_images(command: SubmitSequence, limits: EngineLimits) -> PromptImages | None:
    if limits.vision is None or not command.images:
        return None
    return PromptImages(
        command.images,
        len(command.token_ids),
        limits.vision.merge,
        has_places=limits.vision.mrope_section is not None,
        are_seen_whole=limits.vision.is_bidirectional,
    )
