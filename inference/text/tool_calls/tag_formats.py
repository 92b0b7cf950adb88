"""Calls as tags, with each argument's value as plain text.

    <tool_call>f                 <tool_call>           <minimax:tool_call>
    <arg_key>a</arg_key>         <function=f>          <invoke name="f">
    <arg_value>1</arg_value>     <parameter=a>         <parameter name="a">1</parameter>
    </tool_call>                 1                     </invoke>
                                 </parameter>          <invoke name="g">
                                 </function>           </invoke>
    GLM                          </tool_call>          </minimax:tool_call>
                                 Qwen-Coder, Seed-OSS  MiniMax M2, and DeepSeek V3.2

DeepSeek's tags have a word between bars, and mark each argument as text or JSON:
``<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>``. In tokenizers the word is one
token or spelled out, the tags around it never are one.

A value is the exact text up to the closing tag behind which the call continues or ends, or JSON
where its tag is so marked or the tool's schema has another type. The outer tags may be missing.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from inference.protocol.generation import ToolDefinition
from inference.text.grammars import literal
from inference.text.tool_calls.argument_values import (
    WHITESPACE,
    KnownTools,
    allowed_types,
    alternatives,
    as_json,
    compact_json,
    is_text,
    listed_values,
    read_json,
)
from inference.text.tool_calls.call_parser import CallFormat, Notation, Parsed, ReadCall
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    any_of,
    declared_arguments,
    head_rules,
    json_rule,
    unsupported,
    value_schema,
)
from inference.text.tool_calls.json_calls import json_notation

SPACE = f"[{WHITESPACE}]*"
MAX_TAG_LENGTH = 300
"""A longer name or key is text."""
TAG_TEXT = rf"[^<>\n]{{1,{MAX_TAG_LENGTH}}}"
QUOTED = rf'[^<>"\n]{{1,{MAX_TAG_LENGTH}}}'
_MARK, _MARKED = '" string="', '">'
"""These stand around the mark of a text or of JSON."""


class Tags(NamedTuple):
    """A pattern is a regular expression."""

    format_name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    """The outer tags; the first are the model's own."""
    function: str
    """Text before the name, which may be empty."""
    name: str
    """A pattern: a group, and the name's end."""
    name_end: str
    """Text between the name and the first argument."""
    call_end: str
    """Empty where the outer tag ends the call."""
    argument: str
    key: str
    """A pattern of the rest of its tag: the group ``key``, and ``mark`` where values are marked."""
    key_end: str
    value_end: str
    doubts: str
    """A pattern of the next argument, or a closing tag in its place, inside of a value."""
    special: tuple[str, ...]
    """These texts may be tokens."""
    line: str = "\n"
    """Follows an argument."""
    margin: str = ""
    """Stands around a value and is none of it."""
    needs_known_name: bool = False
    """A name without outer tags must be a tool's."""
    has_json: bool = False
    """Calls in JSON, as relatives write them, are read between the outer tags."""
    is_quoted: bool = False
    """Names and keys are; and the outer tags hold several calls."""
    marks_values: bool = False


class TagFormat(CallFormat):
    def __init__(self, tags: Tags) -> None:
        self.name = tags.format_name
        self.openings = (*tags.opens, *((tags.function,) if tags.function else ()))
        self.closings = tags.closes
        self.markers = tags.special
        self._tags = tags
        self._ends = [tags.call_end] if tags.call_end else []
        if not tags.is_quoted:
            self._ends += tags.closes

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        tags, is_wrapped = self._tags, marker in self._tags.opens
        function = tags.function if is_wrapped else ""

        head = re.compile(rf"{SPACE}{re.escape(function)}{tags.name}")

        def begins(text: str) -> bool | None:
            if (found := head.match(text)) is not None:
                name = found.group(1).strip(WHITESPACE)
                return bool(name) and (is_wrapped or not tags.needs_known_name or name in tools)
            text = text.lstrip(WHITESPACE)
            begun = rf'{QUOTED}"?' if tags.is_quoted else TAG_TEXT
            written = text.removeprefix(function) if text.startswith(function) else None
            may_begin = function.startswith(text) or (written and re.fullmatch(begun, written))
            return None if may_begin else False

        def parse(text: str) -> Parsed | None:
            if (found := head.match(text)) is None:
                return None
            name, begin = found.group(1).strip(WHITESPACE), found.end()
            if (end := self._find_end(text, begin)) is None:
                return None
            block = text[begin : end.start()]
            arguments = self._arguments(name, block, tools, follows_grammar=is_held)
            return None if arguments is None else Parsed((ReadCall(name, arguments),), end.end())

        tagged = Notation(begins, parse)
        return (json_notation(tools), tagged) if tags.has_json and is_wrapped else (tagged,)

    @cached_property
    def _any_end(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._ends)))

    @cached_property
    def _any_argument(self) -> re.Pattern[str]:
        """A value ends at the tag behind which the call continues or ends."""
        argument = re.escape(self._tags.argument)
        value = rf"(?P<value>(?s:.*?)){re.escape(self._tags.value_end)}"
        return re.compile(rf"{SPACE}{argument}{self._tags.key}{value}(?={SPACE}(?:{argument}|\Z))")

    def _find_end(self, text: str, begin: int) -> re.Match[str] | None:
        for end in self._any_end.finditer(text, begin):
            before = text[begin : end.start()].rstrip(WHITESPACE)
            if not before or before.endswith(self._tags.value_end):
                return end
        return None

    def _arguments(
        self, name: str, block: str, tools: KnownTools, *, follows_grammar: bool
    ) -> str | None:
        """``None``: another reading. ``follows_grammar``: values may name the tags."""
        members: dict[str, str] = {}
        position = 0
        while (found := self._any_argument.match(block, position)) is not None:
            key, written = found["key"].strip(WHITESPACE), found["value"]
            text = written.removeprefix(self._tags.margin)
            text = text.removesuffix(self._tags.margin)
            mark = found.groupdict().get("mark")
            value = _as_json(text, tools.properties(name).get(key), tools.schema(name), mark)
            if not key or key in members or value is None:
                return None
            if not follows_grammar and self._is_doubtful(written):
                return None
            members[key] = value
            position = found.end()
        if block[position:].strip(WHITESPACE):
            return None
        return f"{{{','.join(f'{compact_json(key)}:{one}' for key, one in members.items())}}}"

    def _is_doubtful(self, written: str) -> bool:
        """A tag inside of a value may be the format's, behind a broken tag."""
        margin = self._tags.margin
        inside = written.removeprefix(margin).rstrip(WHITESPACE)
        lacks_line = not written.startswith(margin)
        return (lacks_line and self._tags.value_end in inside) or (
            re.search(self._tags.doubts, f"\n{inside}\n") is not None
        )

    def _rules(self, wanted: WantedCalls) -> list[str]:
        tags = self._tags
        line = literal("\n") if tags.function else ""
        has_bare = tags.needs_known_name and wanted.choice.mode == "auto"
        several = wanted.more("one", "\n") if tags.is_quoted else ""
        key = r'/[^<>"\n]+/' if tags.is_quoted else r"/[^<>\n]+/"
        any_mark = f'{literal(_MARK)} ("true" | "false") {literal(_MARKED)}'
        key_end = any_mark if tags.marks_values else wanted.marker(tags.key_end)
        rules = [
            *wanted.answer_rules(
                tags.opens[0],
                between="\n",
                also="bare any_one" if has_bare else "",
                is_section=tags.is_quoted,
            ),
            *(head_rules("bare", tags.function, wanted) if has_bare else ()),
            # Each newline by itself: the lexer does not go back behind one.
            f"rest: {line} one{several} {line} {wanted.marker(tags.closes[0])}",
            f"one: {wanted.marker(tags.function)} any_one",
            f"any_one: {any_of('one', len(wanted.tools))}",
            f"any_argument: {wanted.marker(tags.argument)} {key} {key_end} text_value",
            *head_rules("text_body", tags.value_end, wanted),
            f"text_value: text_body {wanted.marker(tags.line)}",
        ]
        for index, tool in enumerate(wanted.tools):
            rules += self._call_rules(f"one_{index}", tool, wanted)
        return rules

    def _call_rules(self, rule: str, tool: ToolDefinition, wanted: WantedCalls) -> list[str]:
        tags = self._tags
        begin, end = literal(tool.name + tags.name_end), wanted.marker(tags.call_end)
        end = f"{literal(tags.line)}? {end}" if tags.marks_values else end
        declared = declared_arguments(tool, wanted.choice, self._fits)
        if declared is None:
            return [f"{rule}: {begin} any_argument* {end}"]
        arguments, values = [], []
        for number, (key, schema) in enumerate(declared.properties.items()):
            head = wanted.marker(tags.argument + key + ("" if tags.marks_values else tags.key_end))
            argument = f"{head} {rule}_{number}"
            arguments.append(argument if key in declared.required else f"({argument})?")
            path = ("properties", key)
            _check_text(tool, path, alternatives(schema, declared.root))
            values.append(self._value_rule(f"{rule}_{number}", schema, declared.root, wanted))
        return [f"{rule}: {' '.join([begin, *arguments, end])}", *values]

    def _value_rule(
        self, rule: str, schema: object, root: Mapping[str, Any], wanted: WantedCalls
    ) -> str:
        tags = self._tags
        options = alternatives(schema, root)
        may_be_text = any("string" in allowed_types(option) for option in options)
        mark = _MARK if tags.marks_values else ""
        as_text, as_value = (
            wanted.marker(mark and f"{mark}{one}{_MARKED}") for one in ("true", "false")
        )
        value_end = f"{wanted.marker(tags.margin + tags.value_end)} {wanted.marker(tags.line)}"
        if all(listed_values(option) for option in options):
            listed = [value for option in options for value in listed_values(option)]
            strings = [literal(one) for one in listed if isinstance(one, str)]
            others = [literal(compact_json(one)) for one in listed if not isinstance(one, str)]
            groups = ((as_text, strings), (as_value, others))
            written = " | ".join(
                f"{before} ({' | '.join(some)})" for before, some in groups if some
            )
            return f"{rule}: ({written}) {value_end}"
        # Without a mark or a schema that makes a value text, digits may be a number.
        if may_be_text and (is_text(schema, root) or not mark):
            return f"{rule}: {as_text} text_value"
        either = f"{as_text} text_value | " if may_be_text else ""
        value = json_rule(f"{rule}_json", value_schema(schema, root))
        return f"{rule}: {either}{as_value} {rule}_json {value_end}\n{value}"

    def _fits(self, name: str) -> bool:
        pattern = QUOTED if self._tags.is_quoted else TAG_TEXT
        return re.fullmatch(pattern, name) is not None and name == name.strip(WHITESPACE)


def _check_text(
    tool: ToolDefinition, path: tuple[str, ...], options: Sequence[Mapping[str, Any]]
) -> None:
    """Plain text cannot be held to constraints on strings."""
    texts = [option for option in options if "string" in allowed_types(option)]
    for keyword in ("pattern", "format", "minLength", "maxLength"):
        if any(keyword in option and not listed_values(option) for option in texts):
            raise unsupported(tool, (*path, keyword))


def _as_json(text: str, schema: object, root: Mapping[str, Any], mark: str | None) -> str | None:
    """The schema decides without a mark. ``None``: perhaps a value and a tag behind it."""
    if mark == ' string="true"' or (mark is None and is_text(schema, root)):
        value = compact_json(text)
    else:
        value = as_json(text, schema, root)
        if mark is not None:
            with suppress(ValueError, RecursionError):
                value = compact_json(read_json(text))
    may_be_text = any("string" in allowed_types(one) for one in alternatives(schema, root))
    return None if "<" in text and value.startswith('"') and not may_be_text else value


KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
GLM = Tags(
    format_name="glm",
    opens=("<tool_call>",),
    closes=("</tool_call>",),
    function="",
    name=rf"[ \t\r]*([^{WHITESPACE}\[\]<>\"']{{1,{MAX_TAG_LENGTH}}})[ \t\r]*(?=[<\n])",
    name_end="\n",
    call_end="",
    argument=KEY,
    key=f"(?P<key>{TAG_TEXT}){KEY_END}{SPACE}{VALUE}",
    key_end=f"{KEY_END}\n{VALUE}",
    value_end=VALUE_END,
    doubts=rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
    special=("<tool_call>", "</tool_call>", KEY, KEY_END, VALUE, VALUE_END),
    has_json=True,
)
"""GLM 4.5 and later."""
GLM_WITHOUT_LINES = GLM._replace(
    format_name="glm_47", name_end="", key_end=f"{KEY_END}{VALUE}", line=""
)
"""GLM 4.7. Both forms are read; grammars ask for the model's own."""

FUNCTION, PARAMETER, PARAMETER_END = "<function=", "<parameter=", "</parameter>"
QWEN_CODER = Tags(
    format_name="qwen_coder",
    opens=("<tool_call>",),
    closes=("</tool_call>",),
    function=FUNCTION,
    name=f"({TAG_TEXT})>",
    name_end=">\n",
    call_end="</function>",
    argument=PARAMETER,
    key=f"(?P<key>{TAG_TEXT})>",
    key_end=">\n",
    value_end=PARAMETER_END,
    doubts=rf"{PARAMETER}[^<>\n]+>|{PARAMETER_END}(?! )|\n{PARAMETER_END}",
    special=("<tool_call>", "</tool_call>"),
    margin="\n",
    needs_known_name=True,
    has_json=True,
)
SEED = QWEN_CODER._replace(
    format_name="seed",
    opens=("<seed:tool_call>",),
    closes=("</seed:tool_call>",),
    key_end=">",
    doubts=rf"{PARAMETER}[^<>\n]+>|{PARAMETER_END}(?! )",
    special=("<seed:tool_call>", "</seed:tool_call>"),
    margin="",
)

DSML = "｜DSML｜"  # noqa: RUF001
_DSML_END = f"</{DSML}parameter>"
DSML_V32 = Tags(
    format_name="dsml",
    opens=(f"<{DSML}function_calls>", f"<{DSML}tool_calls>"),
    closes=(f"</{DSML}function_calls>", f"</{DSML}tool_calls>"),
    function=f'<{DSML}invoke name="',
    name=f'({QUOTED})">',
    name_end='">\n',
    call_end=f"</{DSML}invoke>",
    argument=f'<{DSML}parameter name="',
    key=f'(?P<key>{QUOTED})"(?P<mark> string="(?:true|false)")?>',
    key_end='">',
    value_end=_DSML_END,
    doubts=f'(?<!</){DSML}|{DSML}(?!parameter>)| string="|{_DSML_END}(?! )',
    special=(DSML,),
    is_quoted=True,
    marks_values=True,
)
DSML_V4 = DSML_V32._replace(
    format_name="dsml_v4", opens=DSML_V32.opens[::-1], closes=DSML_V32.closes[::-1]
)
MINIMAX = DSML_V32._replace(
    format_name="minimax",
    opens=("<minimax:tool_call>",),
    closes=("</minimax:tool_call>",),
    function='<invoke name="',
    call_end="</invoke>",
    argument='<parameter name="',
    value_end=PARAMETER_END,
    doubts=f'\n<parameter name=|<parameter name="[^<>"\n]+">|{PARAMETER_END}(?! )',
    special=("<minimax:tool_call>", "</minimax:tool_call>"),
    marks_values=False,
)
