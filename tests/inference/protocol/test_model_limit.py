"""What models advertise: a prompt and an answer that fit into the context together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.requests.prompts.output_rules import answer_limit
from inference.protocol.generation import GenerationRequest, TokensInput
from inference.protocol.model_limit import ModelLimit, model_limit
from inference.protocol.sampling import SamplingOptions
from tests.cases import each_case


@each_case(
    ("context", "bound", "limit"),
    [
        (8192, None, ModelLimit(context=8192, input=6144, output=2048)),
        (262_144, None, ModelLimit(context=262_144, input=253_952, output=8192)),
        (4096, 512, ModelLimit(context=4096, input=3584, output=512)),
        (8192, 8192, ModelLimit(context=8192, input=2048, output=6144)),
        (2, None, ModelLimit(context=2, input=1, output=1)),
    ],
)
def test_the_split(context: int, bound: int | None, limit: ModelLimit) -> None:
    assert model_limit(context, bound) == limit


def test_what_only_reads_takes_its_whole_context() -> None:
    expected = ModelLimit(context=512, input=512, output=0)
    assert model_limit(512, 100, only_reads=True) == expected


@given(context=st.integers(2, 1 << 20), bound=st.none() | st.integers(1, 1 << 20), data=st.data())
def test_what_is_advertised_is_served(context: int, bound: int | None, data: st.DataObject) -> None:
    limit = model_limit(context, bound)
    assert limit.input + limit.output <= limit.context
    prompt = data.draw(st.integers(1, limit.input))
    asked = data.draw(st.integers(1, limit.output))
    request = GenerationRequest(
        model="m",
        input=TokensInput(prompts=[[1]]),
        sampling=SamplingOptions(max_tokens=asked),
    )
    allowed = answer_limit(
        request, num_prompt_tokens=prompt, context_tokens=context, max_output_tokens=bound
    )
    assert (allowed.max_tokens, allowed.reason) == (asked, "length")
