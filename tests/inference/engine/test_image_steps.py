"""Steps in which an image's rows are made, as the scheduler and its clock see them."""

from __future__ import annotations

from inference.engine.prompt_images import PromptImages
from inference.engine.scheduling.pace import PrefillAverage, StepTimes
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.images import SequenceImage, TokenRun
from inference.protocol.load import PrefillSpeed
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case

IMAGE = SequenceImage(digest="a", data=b"", runs=[TokenRun(40, 4)], grid=(1, 4, 4))


def chunk(start: int, end: int, *, has_image: bool = True) -> Schedule:
    images = PromptImages([IMAGE], 100, merge=2) if has_image else None
    sequence = Sequence(
        "it",
        [1] * 100,
        SamplingParams(max_tokens=1),
        context_tokens=200,
        arrival=1,
        deadline_s=1.0,
        images=images,
    )
    return Schedule(prefills=[PrefillChunk(sequence, start, end, is_last=False)])


def test_which_steps_have_rows_of_an_image() -> None:
    spans = [(0, 40), (0, 41), (42, 43), (43, 60), (44, 60)]
    assert [chunk(*span).has_image_rows for span in spans] == [False, True, True, True, False]
    assert not chunk(0, 100, has_image=False).has_image_rows


@each_case("has_image", [True, False])
def test_the_towers_time_is_no_measure_of_prompt_tokens(has_image: bool) -> None:
    times = StepTimes(
        SchedulerLimits(target_step_s=0.1), PrefillAverage(PrefillSpeed(token_s=0.001))
    )
    before = times.pacer.prefill_tokens(0)
    times.record(chunk(0, 100, has_image=has_image), step_s=30.0, now_s=1.0)
    assert (times.pacer.prefill_tokens(0) == before) == has_image
    assert times.last_forward_unix_s is not None
