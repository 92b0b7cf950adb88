"""DeepSeek V3.2 and MiniMax M2: calls in tags that quote their names. DeepSeek's mark each
argument as text or JSON.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f">
    <｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>
    <｜DSML｜parameter name="b" string="false">1</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="a">1</parameter>
    </invoke>
    <invoke name="g">
    </invoke>
    </minimax:tool_call>

The section's tags may be missing. V4 calls the section ``tool_calls``: both are read, and grammars
ask for the one that the template names. A value is the exact text between its tags, or JSON where
its tag is so marked or the tool's schema has another type. Whitespace around the calls is left out.
In tokenizers the word between the bars is one token or spelled out, the tags around it never are
one.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import KnownTools
from inference.text.tool_calls.call_parser import CallFormat, Notation
from inference.text.tool_calls.grammar_rules import (
    MAX_TAG_LENGTH,
    TEXT_TERMINAL,
    TagStyle,
    WantedCalls,
    any_of,
    fits_tag,
    function_rules,
    literal,
    marker_token_id,
)
from inference.text.tool_calls.tag_formats import PARAMETER_END as PLAIN_PARAMETER_END
from inference.text.tool_calls.tag_formats import TaggedCalls, Tags

NEWLINE = "\n"
DSML = "｜DSML｜"  # noqa: RUF001
INVOKE = f'<{DSML}invoke name="'
INVOKE_END = f"</{DSML}invoke>"
PARAMETER = f'<{DSML}parameter name="'
PARAMETER_END = f"</{DSML}parameter>"
_QUOTED = rf'[^<>"\n]{{1,{MAX_TAG_LENGTH}}}'


def fits_quotes(name: str) -> bool:
    return fits_tag(name) and '"' not in name


DSML_TAGS = Tags(
    function=INVOKE,
    name=f'({_QUOTED})">',
    name_begun=f'{_QUOTED}"?',
    argument=PARAMETER,
    key=f'(?P<key>{_QUOTED})"(?P<mark> string="(?:true|false)")?>',
    value_end=PARAMETER_END,
    ends=(INVOKE_END,),
    doubts=f'(?<!</){DSML}|{DSML}(?!parameter>)| string="|{PARAMETER_END}(?! )',
)

SECTIONS = ("function_calls", "tool_calls")
OPENINGS = tuple(f"<{DSML}{section}>" for section in SECTIONS)
CLOSINGS = tuple(f"</{DSML}{section}>" for section in SECTIONS)


def section_of(template: str) -> str:
    """Which of the two the model was trained on."""
    named = (name for name in SECTIONS if f"{DSML}{name}" in template)
    return next(named, SECTIONS[0])


class DsmlFormat(CallFormat):
    name = "dsml"
    openings = (*OPENINGS, INVOKE)
    closings = CLOSINGS
    closed = OPENINGS
    markers = (DSML,)

    def __init__(self, *, section: str = SECTIONS[0]) -> None:
        self._section = section

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (TaggedCalls(tools, DSML_TAGS, is_wrapped=marker != INVOKE).notation(),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        spelling = _Spelling(wanted.tokenizer)
        opening, closing = f"<{DSML}{self._section}>", f"</{DSML}{self._section}>"
        line = literal("\n")
        return [
            *_answer_rules(wanted, opening, spelling),
            # Each newline by itself: the lexer does not go back behind one.
            f"rest: {line} one{wanted.more('one', NEWLINE)} {line} {spelling.tag(closing)}",
            f"one: {spelling.tag(INVOKE)} ({any_of('one', len(wanted.tools))})",
            *function_rules("one", wanted, _style(spelling)),
        ]


class _Spelling:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_id = marker_token_id(tokenizer, DSML)

    def tag(self, text: str) -> str:
        """``text`` with at most one of the words between bars in it."""
        before, word, after = text.partition(DSML)
        if not word or self._token_id is None:
            return literal(text)
        pieces = (literal(before) if before else "", f"<[{self._token_id}]>", literal(after))
        return " ".join(pieces).strip()

    def text_up_to(self, rule: str, tag: str) -> list[str]:
        """``rule`` is free text that ends in ``tag``. A lazy terminal ends text that could
        continue, but contains no special token."""
        spelled = f"{rule}_spelled[lazy]: TEXT {literal(tag)}"
        if self._token_id is None:
            return [f"{rule}: {rule}_spelled", spelled]
        before, _, after = tag.partition(DSML)
        ended = before.replace("/", "\\/")
        return [
            f"{rule}: {rule.upper()}_TEXT <[{self._token_id}]> {literal(after)} | {rule}_spelled",
            f"{rule.upper()}_TEXT: /(.|\\n)*{ended}/",
            spelled,
        ]


def _answer_rules(wanted: WantedCalls, opening: str, spelling: _Spelling) -> list[str]:
    if wanted.are_forced:
        # What one section holds is all that the answer calls.
        return [f"start: {spelling.tag(opening)} rest", TEXT_TERMINAL]
    return [
        "start: call* TEXT" if wanted.parallel else "start: TEXT | call",
        "call: head rest",
        *spelling.text_up_to("head", opening),
        TEXT_TERMINAL,
    ]


def _style(spelling: _Spelling) -> TagStyle:
    line = literal("\n")
    any_key = f'/[^<>"\\n]+/ {literal(chr(34) + " string=" + chr(34))} ("true" | "false")'
    return TagStyle(
        begin=lambda name: literal(f'{name}">\n'),
        end=f"{line}? {spelling.tag(INVOKE_END)}",
        key=lambda key: f"{spelling.tag(PARAMETER + key)}",
        any_key=f"{spelling.tag(PARAMETER)} {any_key} {literal(chr(34) + '>')}",
        value_end=f"{spelling.tag(PARAMETER_END)} {line}",
        text_value=(
            *spelling.text_up_to("text_body", PARAMETER_END),
            f"text_value: text_body {line}",
        ),
        before_text=literal('" string="true">'),
        before_json=literal('" string="false">'),
        fits=fits_quotes,
    )


MINIMAX_SECTION = ("<minimax:tool_call>", "</minimax:tool_call>")
MINIMAX_INVOKE = '<invoke name="'
MINIMAX_INVOKE_END = "</invoke>"
MINIMAX_PARAMETER = '<parameter name="'

_LINE = literal(NEWLINE)
_MINIMAX_STYLE = TagStyle(
    begin=lambda name: literal(f'{name}">\n'),
    end=literal(MINIMAX_INVOKE_END),
    key=lambda key: literal(f'{MINIMAX_PARAMETER}{key}">'),
    any_key=f'{literal(MINIMAX_PARAMETER)} /[^<>"\\n]+/ {literal(chr(34) + ">")}',
    value_end=literal(f"{PLAIN_PARAMETER_END}\n"),
    text_value=(
        f"text_body[lazy]: TEXT {literal(PLAIN_PARAMETER_END)}",
        f"text_value: text_body {_LINE}",
    ),
    fits=fits_quotes,
)


MINIMAX_TAGS = replace(
    DSML_TAGS,
    function=MINIMAX_INVOKE,
    argument=MINIMAX_PARAMETER,
    value_end=PLAIN_PARAMETER_END,
    ends=(MINIMAX_INVOKE_END,),
    doubts=f'\n<parameter name=|{MINIMAX_PARAMETER}[^<>"\n]+">|{PLAIN_PARAMETER_END}(?! )',
)


class MiniMaxFormat(CallFormat):
    name = "minimax"
    openings = (MINIMAX_SECTION[0], MINIMAX_INVOKE)
    closings = MINIMAX_SECTION[1:]
    closed = MINIMAX_SECTION[:1]
    markers = MINIMAX_SECTION

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        is_wrapped = marker != MINIMAX_INVOKE
        return (TaggedCalls(tools, MINIMAX_TAGS, is_wrapped=is_wrapped).notation(),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        opening, closing = MINIMAX_SECTION
        return [
            *wanted.answer_rules(opening, is_section=True),
            f"rest: {_LINE} one{wanted.more('one', NEWLINE)} {_LINE} {wanted.marker(closing)}",
            f"one: {literal(MINIMAX_INVOKE)} ({any_of('one', len(wanted.tools))})",
            *function_rules("one", wanted, _MINIMAX_STYLE),
        ]
