"""Prompts: what is tokenized with which special tokens, limits, and sampling as it is decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from inference.neuron.allowance import Allowance
from inference.neuron.echo import echo_of
from inference.neuron.errors import RequestRefusedError
from inference.neuron.model_text import ModelText
from inference.neuron.prompts import (
    MAX_ARGUMENTS_CHARACTERS,
    Prepared,
    chat_prompt,
    count_tokens,
    prepare,
    used_sampling,
)
from inference.protocol.events import UsedSampling
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    TokenCountRequest,
    TokensInput,
    ToolCall,
    ToolDefinition,
)
from inference.protocol.sampling import SamplingOptions, ThinkingLimit
from inference.text import phrases
from tests.inference.neuron.model_texts import model_text


def _prepare(text: ModelText, prompt: object, **sampling: object) -> Prepared:
    options = SamplingOptions(**sampling)  # type: ignore[arg-type]
    return prepare(
        GenerationRequest(model="m", input=prompt, sampling=options),  # type: ignore[arg-type]
        text,
    )


def test_a_text_prompt_gets_its_bos_and_a_chat_renders_its_own(sentencepiece_dir: Path) -> None:
    text = model_text(sentencepiece_dir)
    assert _prepare(text, TextInput(texts=["The"])).prompts[0][0] == 1
    chat = ChatInput(messages=[ChatMessage(role="user", content="The")])
    assert 1 not in _prepare(text, chat).prompts[0]


def test_a_chat_becomes_special_tokens(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = ChatInput(messages=[ChatMessage(role="user", content="Hi")])
    prompt = _prepare(text, chat)
    assert prompt.prompts[0][0] == 1
    assert 2 in prompt.prompts[0]
    assert not prompt.continues_text


def test_token_prompts_are_verbatim_and_checked(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert _prepare(text, TokensInput(prompts=[[7, 8]])).prompts[0] == [7, 8]
    for bad in (1000, -1):
        with pytest.raises(RequestRefusedError) as refused:
            _prepare(text, TokensInput(prompts=[[bad]]))
        assert refused.value.failure.code == "bad_token_id"


def test_what_a_client_expects_is_tokens_where_the_engine_drafts(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = ChatInput(messages=[ChatMessage(role="user", content="Hi")])
    request = GenerationRequest(model="m", input=chat, prediction="The cat")
    assert prepare(request, text).prediction == []
    drafting = replace(text, report=msgspec.structs.replace(text.report, takes_predictions=True))
    expected = text.tokenizer.encode("The cat", add_special_tokens=False)
    assert prepare(request, drafting).prediction == expected


def test_an_empty_prompt_is_refused(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(model_text(byte_level_dir), TextInput(texts=[""]))
    assert refused.value.failure.code == "empty_prompt"


def test_a_template_that_writes_nothing_is_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{# nothing #}")
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(text, ChatInput(messages=[ChatMessage(role="user", content="Hi")]))
    assert (refused.value.failure.code, refused.value.failure.param) == ("empty_prompt", "messages")


def test_the_rest_of_the_context_is_the_default_limit(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert _prepare(text, TokensInput(prompts=[[5] * 99])).params.max_tokens == 1
    assert _prepare(text, TokensInput(prompts=[[5] * 90]), max_tokens=10).params.max_tokens == 10


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(100, None), (90, 11)])
def test_what_does_not_fit_is_refused(
    byte_level_dir: Path, num_prompt: int, max_tokens: int | None
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(
            model_text(byte_level_dir),
            TokensInput(prompts=[[5] * num_prompt]),
            max_tokens=max_tokens,
        )
    assert refused.value.failure.code == "context_length_exceeded"


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20.0})
    params = _prepare(text, TextInput(texts=["x"]), temperature=0.0).params
    assert params.temperature == 0.0
    assert params.top_k == 20
    assert params.top_p == 1.0
    assert params.repetition_penalty == 1.0
    used = used_sampling(_prepare(text, TextInput(texts=["x"]), frequency_penalty=0.5).params)
    assert used == UsedSampling(
        temperature=0.6, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.5
    )


def test_stop_token_ids_hold_eos_unless_it_is_ignored(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    asked = {"stop_token_ids": [9, 2]}
    assert _prepare(text, TextInput(texts=["x"]), **asked).params.stop_token_ids == [2, 9]
    ignoring = _prepare(text, TextInput(texts=["x"]), ignore_eos=True, stop_token_ids=[9])
    assert ignoring.params.stop_token_ids == [9]


@pytest.mark.parametrize("field", [{"logit_bias": {5000: 1.0}}, {"stop_token_ids": [5000]}])
def test_token_ids_outside_the_vocabulary_are_refused(
    byte_level_dir: Path, field: dict[str, object]
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(model_text(byte_level_dir), TextInput(texts=["x"]), **field)
    assert refused.value.failure.param == next(iter(field))


def test_echo_is_the_clients_text_or_its_tokens_as_text(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    token_ids = text.tokenizer.encode("Straße", add_special_tokens=False)
    for prompt in (TextInput(texts=["Straße"]), TokensInput(prompts=[token_ids])):
        request = GenerationRequest(model="m", input=prompt, echo=True)
        echo = echo_of(0, request, prepare(request, text), text)
        assert echo.text == "Straße" and not echo.logprobs


def test_echo_with_logprobs_scores_the_prompt(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    request = GenerationRequest(
        model="m",
        input=TextInput(texts=["abc"]),
        sampling=SamplingOptions(top_logprobs=2, max_tokens=0),
        echo=True,
    )
    prepared = prepare(request, text)
    assert (prepared.params.prompt_logprobs, prepared.params.max_tokens) == (2, 1)
    echo = echo_of(0, request, prepared, text)
    (first,) = echo.logprobs
    assert first.logprob is None and first.top == []


@pytest.mark.parametrize(
    ("echo", "top", "of_prompt", "scored"),
    [
        (False, 2, None, None),
        (False, None, 3, 3),
        (True, 2, 5, 5),
        (True, 2, 0, 2),
        (True, None, 0, 0),
    ],
)
def test_a_prompt_is_scored_for_its_echo_and_for_itself(
    byte_level_dir: Path, echo: bool, top: int | None, of_prompt: int | None, scored: int | None
) -> None:
    text = model_text(byte_level_dir)
    sampling = SamplingOptions(top_logprobs=top, prompt_logprobs=of_prompt)
    request = GenerationRequest(
        model="m", input=TextInput(texts=["abc"]), sampling=sampling, echo=echo
    )
    assert prepare(request, text).params.prompt_logprobs == scored


def test_a_chat_is_scored(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ messages[0].content }}")
    chat = ChatInput(messages=[ChatMessage(role="user", content="abc")])
    sampling = SamplingOptions(prompt_logprobs=1)
    request = GenerationRequest(model="m", input=chat, sampling=sampling)
    assert prepare(request, text).params.prompt_logprobs == 1


def test_more_scores_than_one_answer_holds_are_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, context_tokens=2**15)
    asked = TokensInput(prompts=[[5] * 2**13] * 2)
    for num_top, is_refused in ((15, False), (16, True)):
        request = GenerationRequest(
            model="m", input=asked, sampling=SamplingOptions(prompt_logprobs=num_top)
        )
        if not is_refused:
            prepare(request, text)
            continue
        with pytest.raises(RequestRefusedError) as refused:
            prepare(request, text)
        assert refused.value.failure.param == "prompt_logprobs"
        assert str(2**18) in refused.value.failure.message


def _ask(**request: object) -> GenerationRequest:
    """Of 90 tokens, unless it says otherwise."""
    given = {"input": TokensInput(prompts=[[5] * 90])} | request
    return GenerationRequest(model="m", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "bound", "ends_at_context", "max_tokens", "reason"),
    [
        (None, None, False, 10, "length"),
        (None, None, True, 10, "context"),
        (None, 4, True, 4, "length"),
        (None, 50, False, 10, "length"),
        (None, 50, True, 10, "context"),
        (10, None, True, 10, "length"),
        (11, None, True, 10, "context"),
        (4, 4, False, 4, "length"),
        (5, 4, True, 4, "length"),
        (11, 20, True, 10, "context"),
        (21, 20, True, 10, "context"),
    ],
)
def test_how_long_an_answer_may_be_and_why(
    byte_level_dir: Path,
    asked: int | None,
    bound: int | None,
    ends_at_context: bool,
    max_tokens: int,
    reason: str,
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=bound)
    options = SamplingOptions(max_tokens=asked)
    prepared = prepare(_ask(sampling=options, ends_at_context=ends_at_context), text)
    assert prepared.params.max_tokens == max_tokens
    assert prepared.limit.reason == reason


def test_more_than_the_operator_allows_is_refused_with_both_numbers(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, max_output_tokens=4)
    options = SamplingOptions(max_tokens=5)
    with pytest.raises(RequestRefusedError, match="at most 4 tokens and you asked for 5") as no:
        prepare(_ask(sampling=options), text)
    assert no.value.failure.param == "max_tokens"


SPOKEN = "{{ messages[0].content }}{% if thinking %}" + " ".join(
    (phrases.SPOKEN.opens[0], phrases.SPOKEN.closes[0], "{% endif %}")
)
TAGGED = "{{ messages[0].content }}{# </think> #}{% if thinking is not false %}<think>\n{% endif %}"


class TestPhrases:
    """Thinking between words that are no single tokens."""

    def test_they_are_looked_for_where_the_model_was_asked_to_think(
        self, byte_level_dir: Path
    ) -> None:
        text = model_text(byte_level_dir, chat_template=SPOKEN)
        assert "reasoning" in text.capabilities
        assert prepare(_ask(input=_chat(thinking=True)), text).thinking.phrases is phrases.SPOKEN
        assert prepare(_ask(input=_chat(shows_reasoning=True)), text).thinking.phrases is not None
        assert prepare(_ask(input=_chat()), text).thinking.phrases is None
        begun = _chat(thinking=True, answer_start="Yes")
        assert prepare(_ask(input=begun), text).thinking.phrases is None

    def test_a_template_opens_the_block(self, byte_level_dir: Path) -> None:
        text = model_text(byte_level_dir, chat_template=TAGGED)
        opened = prepare(_ask(input=_chat(thinking=True)), text)
        assert opened.thinking.is_open and opened.params.thinking_limit is None
        assert not prepare(_ask(input=_chat(thinking=False)), text).thinking.is_open
        begun = _chat(thinking=True, answer_start="Yes")
        assert chat_prompt(begun, text, 100) == "Hi<think>\n\n</think>\n\nYes"

    def test_what_needs_a_token_that_ends_it_is_refused(self, byte_level_dir: Path) -> None:
        text = model_text(byte_level_dir, chat_template=TAGGED)
        bounded = _ask(input=_chat(thinking=True, thinking_budget_tokens=5))
        in_json = _ask(input=_chat(thinking=True), output_format=OutputFormat(path="format"))
        for asked in (bounded, in_json):
            with pytest.raises(RequestRefusedError) as refused:
                prepare(asked, text)
            assert refused.value.failure.code == "unsupported_parameter"
        unopened = _ask(input=_chat(thinking=False), output_format=OutputFormat(path="format"))
        assert prepare(unopened, text).params.grammar is not None


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPENS = THINKS + "{% if enable_thinking is not false %}<think>\n{% endif %}"


def _chat(**kwargs: object) -> ChatInput:
    messages = [ChatMessage(role="user", content="Hi")]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]


def test_a_prompt_that_opens_the_block_is_noticed(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepare(_ask(input=_chat(thinking=True)), text).thinking.is_open
    assert prepare(_ask(input=_chat(shows_reasoning=True)), text).thinking.is_open
    assert not prepare(_ask(input=_chat()), text).thinking.is_open


def test_an_answer_goes_on_from_its_start(thinking_dir: Path) -> None:
    """After the thinking block, where the template opens one."""
    text = model_text(thinking_dir, chat_template=OPENS)
    for thinking, block in ((False, ""), (None, "<think>\n\n</think>\n\n")):
        chat = _chat(thinking=thinking, shows_reasoning=True, answer_start="Once ")
        prepared = prepare(_ask(input=chat), text)
        wanted = text.tokenizer.encode(f"Hi{block}Once ", add_special_tokens=False)
        assert prepared.prompts == [wanted]
        assert prepared.continues_text
        assert not prepared.thinking.is_open


def test_thinking_is_looked_for_in_chats_only(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepare(_ask(input=_chat()), text).thinking.markers is not None
    raw = prepare(_ask(input=TextInput(texts=["<think>"])), text)
    assert (raw.thinking.markers, raw.thinking.is_open) == (None, False)


def test_a_budget_limits_the_block(thinking_dir: Path, byte_level_dir: Path) -> None:
    def limit(directory: Path, template: str) -> ThinkingLimit | None:
        text = model_text(directory, chat_template=template)
        asked = _chat(thinking=True, thinking_budget_tokens=7)
        return prepare(_ask(input=asked), text).params.thinking_limit

    markers = model_text(thinking_dir).markers
    assert markers is not None
    end = markers.end_token_id
    assert limit(thinking_dir, OPENS) == ThinkingLimit(max_tokens=7, end_token_id=end)
    assert limit(thinking_dir, THINKS) == ThinkingLimit(
        max_tokens=7, end_token_id=end, start_token_id=markers.start_token_id
    )
    assert limit(byte_level_dir, THINKS) is None


def test_counting_renders_what_answering_renders(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    for chat in (_chat(), _chat(thinking=True)):
        counted = count_tokens(TokenCountRequest(model="m", input=chat), text)
        assert counted == prepare(_ask(input=chat), text).num_prompt_tokens
    assert counted > count_tokens(TokenCountRequest(model="m", input=_chat()), text)


def test_counting_refuses_what_answering_refuses(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ tools }}{{ messages[0].content }}")
    tool = ToolDefinition(name="f", path="tools[0].parameters", parameters={"type": "object"})
    wrong = OutputFormat(path="output_format.schema", schema={"type": "no such type"})
    for chat, output_format in ((_chat(tools=[tool]), None), (_chat(), wrong)):
        with pytest.raises(RequestRefusedError) as answering:
            prepare(_ask(input=chat, output_format=output_format), text)
        with pytest.raises(RequestRefusedError) as counting:
            count_tokens(
                TokenCountRequest(model="m", input=chat, output_format=output_format), text
            )
        assert counting.value.failure == answering.value.failure


def test_tools_without_a_place_are_refused_as_tools(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ messages[0].content }}")
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(text, _chat(tools=[ToolDefinition(name="f", path="tools[0].parameters")]))
    assert refused.value.failure.param == "tools"


def test_the_fingerprint_is_of_what_answers(byte_level_dir: Path) -> None:
    made = model_text(byte_level_dir).fingerprint
    assert made == model_text(byte_level_dir).fingerprint
    assert made != model_text(byte_level_dir, dtype="bfloat16").fingerprint
    assert made != model_text(byte_level_dir, chat_template="x").fingerprint


def test_capabilities_are_what_the_files_say(byte_level_dir: Path, thinking_dir: Path) -> None:
    always = {"chat", "completions", "logprobs", "structured_output"}
    takes_tools = "{{ tools }}<tool_call>"
    for directory, template, more in (
        (byte_level_dir, None, set()),
        (byte_level_dir, takes_tools, {"tool_call"}),
        (byte_level_dir, OPENS, set()),
        (thinking_dir, THINKS, set()),
        (thinking_dir, OPENS, {"reasoning"}),
        (thinking_dir, OPENS + takes_tools, {"reasoning", "tool_call"}),
    ):
        found = model_text(directory, chat_template=template).capabilities
        assert set(found) == always | more
    assert model_text(byte_level_dir, kind="embedding").capabilities == ["embeddings"]


def test_a_text_that_cannot_fit_is_refused_by_its_size_alone(
    byte_level_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = model_text(byte_level_dir)
    most = text.tokenizer.most_bytes_per_token
    assert most is not None
    monkeypatch.setattr(text.tokenizer, "encode", None)
    for prompt, param in (
        (TextInput(texts=["x" * (100 * most)]), "prompt"),
        (ChatInput(messages=[ChatMessage(role="user", content="x" * (100 * most))]), "messages"),
    ):
        with pytest.raises(RequestRefusedError) as refused:
            _prepare(text, prompt)
        failure = refused.value.failure
        assert (failure.code, failure.param) == ("context_length_exceeded", param)
        for said in ("100 tokens", "at least 10", f"more than {most}"):
            assert said in failure.message


def test_what_may_fit_by_its_size_is_counted(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(model_text(byte_level_dir), TextInput(texts=["q" * 120]))
    assert "the prompt has 120," in refused.value.failure.message


def _afford(text: ModelText, allowance: Allowance, **sampling: object) -> Prepared:
    request = GenerationRequest(
        model="m",
        input=TokensInput(prompts=[[5] * 20, [6] * 30]),
        sampling=SamplingOptions(**sampling),  # type: ignore[arg-type]
    )
    return prepare(request, text, allowance)


def test_a_prompt_over_the_budget_is_refused_with_both_numbers(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert _afford(text, Allowance(prompt_tokens=50)).num_prompt_tokens == 50
    with pytest.raises(RequestRefusedError) as refused:
        _afford(text, Allowance(prompt_tokens=49))
    failure = refused.value.failure
    assert failure.code == "insufficient_quota"
    assert "50 tokens" in failure.message and "49" in failure.message


@pytest.mark.parametrize(
    ("cap", "asked", "operators", "expected"),
    [
        (8, None, None, 8),
        (8, None, 5, 5),
        (8, None, 12, 8),
        (8, 20, None, 20),
        (500, None, None, 70),
    ],
)
def test_the_budget_bounds_an_answer_for_which_the_client_named_no_number(
    byte_level_dir: Path, cap: int, asked: int | None, operators: int | None, expected: int
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=operators)
    prepared = _afford(text, Allowance(output_tokens=cap), max_tokens=asked)
    assert (prepared.params.max_tokens, prepared.limit.reason) == (expected, "length")


def test_a_budget_that_buys_no_answer_refuses(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _afford(model_text(byte_level_dir), Allowance(output_tokens=0))
    assert refused.value.failure.code == "insufficient_quota"


def test_a_tool_call_with_too_long_arguments_is_refused(byte_level_dir: Path) -> None:
    calls = [ToolCall(id="c", name="f", arguments=json.dumps("x" * MAX_ARGUMENTS_CHARACTERS))]
    chat = ChatInput(messages=[ChatMessage(role="assistant", tool_calls=calls)])
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(model_text(byte_level_dir), chat)
    failure = refused.value.failure
    assert (failure.code, failure.param) == ("invalid_value", "messages")
    assert str(MAX_ARGUMENTS_CHARACTERS) in failure.message
