"""Answers of newer families in their published formats, and their parsed calls."""

from __future__ import annotations

from inference.text.tool_calls import json_formats as ds
from inference.text.tool_calls.gemma import FUNCTION_GEMMA, GEMMA_4, GemmaFormat
from inference.text.tool_calls.json_formats import (
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK_V31,
    FUNCTOOLS,
    GRANITE,
    HUNYUAN,
    KIMI,
    NEMOTRON,
    HarmonyFormat,
    JsonListFormat,
    PlainFormat,
    SectionFormat,
)
from inference.text.tool_calls.python_formats import Lfm2Format
from inference.text.tool_calls.tag_formats import (
    DSML_V4,
    DSML_V32,
    GLM,
    GLM_WITHOUT_LINES,
    MINIMAX,
    SEED,
    TagFormat,
)
from tests.inference.text.tool_calls.calls import Merged

FAMILIES = {
    "deepseek": SectionFormat(DEEPSEEK),
    "deepseek_v31": SectionFormat(DEEPSEEK_V31),
    "dsml": TagFormat(DSML_V32),
    "dsml_v4": TagFormat(DSML_V4),
    "function_gemma": GemmaFormat(FUNCTION_GEMMA),
    "gemma_4": GemmaFormat(GEMMA_4),
    "glm": TagFormat(GLM),
    "glm_47": TagFormat(GLM_WITHOUT_LINES),
    "granite": JsonListFormat(GRANITE),
    "hunyuan": JsonListFormat(HUNYUAN),
    "nemotron": JsonListFormat(NEMOTRON),
    "command_r": JsonListFormat(COMMAND_R),
    "functools": JsonListFormat(FUNCTOOLS),
    "harmony": HarmonyFormat(),
    "kimi": SectionFormat(KIMI),
    "lfm2": Lfm2Format(),
    "minimax": TagFormat(MINIMAX),
    "plain": PlainFormat(),
    "seed": TagFormat(SEED),
}

LS = ("bash", '{"command":"ls"}')
PARIS = ("get_weather", '{"city":"Paris","days":3}')
FENCED = f'function{ds.SEPARATOR}bash\n```json\n{{"command": "ls"}}\n```'
BARE = f'bash{ds.SEPARATOR}{{"command": "ls"}}'
HEAD, MIDDLE, END = ds.CALLS_BEGIN + ds.CALL_BEGIN, ds.CALL_BEGIN, ds.CALL_END
QUOTED_ZERO = '"0"'
KIMI_LS = (
    '<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|>"
)
KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
GLM_PARIS = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
COMMAND_R_LS = '{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}'
GRANITE_LS = '{"name": "bash", "arguments": {"command": "ls"}}'
FG_PARIS = (
    "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>"
)
G4_PARIS = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
HARMONY_LS = '<|channel|>commentary to=bash <|constrain|>json<|message|>{"command": "ls"}'

DSML_LS = (
    '<｜DSML｜invoke name="bash">\n'  # noqa: RUF001
    '<｜DSML｜parameter name="command" string="true">ls</｜DSML｜parameter>\n'  # noqa: RUF001
    "</｜DSML｜invoke>"  # noqa: RUF001
)
DSML_PARIS = (
    '<｜DSML｜invoke name="get_weather">\n'  # noqa: RUF001
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'  # noqa: RUF001
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'  # noqa: RUF001
    "</｜DSML｜invoke>"  # noqa: RUF001
)
DSML_SECTION = "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"  # noqa: RUF001

SEED_PARIS = (
    "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
    "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
)
INVOKE_LS = '<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>'
INVOKE_PARIS = (
    '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>'
)
MINIMAX_SECTION = "<minimax:tool_call>\n", "\n</minimax:tool_call>"

CASES: dict[str, dict[str, tuple[str, Merged]]] = {
    "deepseek": {
        "one call": (f"{HEAD}{FENCED}{END}{ds.CALLS_END}", [LS]),
        "text before it": (f"I look.\n{HEAD}{FENCED}{END}{ds.CALLS_END}", ["I look.", LS]),
        "several": (
            f"{HEAD}{FENCED}{END}\n{MIDDLE}{FENCED}{END}{ds.CALLS_END} Done.",
            [LS, LS, "Done."],
        ),
        "without the outer markers": (f"{MIDDLE}{FENCED}{END}", [LS]),
        "without a type": (f"{HEAD}{BARE}{END}{ds.CALLS_END}", [LS]),
        "no separator": (f'{HEAD}bash{{"a": 1}}', [f'{HEAD}bash{{"a": 1}}']),
        "nothing in the section": (f"{ds.CALLS_BEGIN} then", [f"{ds.CALLS_BEGIN} then"]),
        "cut off in the head": (
            f"{HEAD}function{ds.SEPARATOR}ba",
            [f"{HEAD}function{ds.SEPARATOR}ba"],
        ),
        "cut off in the arguments": (f"{HEAD}{FENCED[:-7]}", [f"{HEAD}{FENCED[:-7]}"]),
    },
    "deepseek_v31": {
        "one call": (f"{HEAD}{BARE}{END}{ds.CALLS_END}", [LS]),
        "several": (f"{HEAD}{BARE}{END}{MIDDLE}{BARE}{END}{ds.CALLS_END}", [LS, LS]),
        "text before it": (f"I look.{HEAD}{BARE}{END}{ds.CALLS_END}", ["I look.", LS]),
        "no arguments": (f"{HEAD}now{ds.SEPARATOR}{{}}{END}{ds.CALLS_END}", [("now", "{}")]),
    },
    "dsml": {
        "one call": (DSML_PARIS.join(DSML_SECTION), [PARIS]),
        "text before it": (f"I look.\n\n{DSML_LS.join(DSML_SECTION)}", ["I look.", LS]),
        "several": (f"{DSML_LS}\n{DSML_PARIS}".join(DSML_SECTION), [LS, PARIS]),
        "several and text": (
            f"{DSML_LS}\n{DSML_LS}".join(DSML_SECTION) + " Done.",
            [LS, LS, "Done."],
        ),
        "no arguments": (
            '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>'.join(DSML_SECTION),  # noqa: RUF001
            [("now", "{}")],
        ),
        "without its section": (DSML_LS, [LS]),
        "white space in a tag that writes none": (
            DSML_LS.replace('"true">', '"true" >').join(DSML_SECTION),
            [DSML_LS.replace('"true">', '"true" >').join(DSML_SECTION)],
        ),
        "a text of several lines is kept to the character": (
            DSML_LS.replace("ls", "\ncat <<E\n <a>\nE\n").join(DSML_SECTION),
            [("bash", '{"command":"\\ncat <<E\\n <a>\\nE\\n"}')],
        ),
        "closing tags inside a value": (
            DSML_LS.replace("ls", "a</｜DSML｜parameter> b").join(DSML_SECTION),  # noqa: RUF001
            [("bash", '{"command":"a</｜DSML｜parameter> b"}')],  # noqa: RUF001
        ),
        "text that its tag calls text, and lists": (
            '<｜DSML｜invoke name="write_file">\n'  # noqa: RUF001
            '<｜DSML｜parameter name="mode" string="true">420</｜DSML｜parameter>\n'  # noqa: RUF001
            '<｜DSML｜parameter name="tags" string="false">["a", "b"]</｜DSML｜parameter>\n'  # noqa: RUF001
            "</｜DSML｜invoke>",  # noqa: RUF001
            [("write_file", '{"mode":"420","tags":["a","b"]}')],
        ),
        "a text in JSON": (
            DSML_LS.replace('"true">ls', '"false">"ls"'),
            [LS],
        ),
        "no JSON where the tag declares it": (
            DSML_PARIS.replace(">3<", ">three<"),
            [("get_weather", '{"city":"Paris","days":"three"}')],
        ),
        "a tag without a type": (
            DSML_PARIS.replace(' string="true"', "").replace(' string="false"', ""),
            [PARIS],
        ),
        "the tag in prose": (
            "Write <｜DSML｜function_calls> and then\n",  # noqa: RUF001
            ["Write <｜DSML｜function_calls> and then\n"],  # noqa: RUF001
        ),
        "cut off in the name": (
            '<｜DSML｜invoke name="ba',  # noqa: RUF001
            ['<｜DSML｜invoke name="ba'],  # noqa: RUF001
        ),
        "cut off in a text": (
            DSML_PARIS[: DSML_PARIS.index("ris")].join((DSML_SECTION[0], "")),
            [DSML_PARIS[: DSML_PARIS.index("ris")].join((DSML_SECTION[0], ""))],
        ),
        "cut off in another value": (
            DSML_PARIS[: DSML_PARIS.index("3") + 1],
            [DSML_PARIS[: DSML_PARIS.index("3") + 1]],
        ),
    },
    "dsml_v4": {
        "one call": (
            f"<｜DSML｜tool_calls>\n{DSML_PARIS}\n</｜DSML｜tool_calls>",  # noqa: RUF001
            [PARIS],
        ),
    },
    "kimi": {
        "one call": (KIMI_LS.join(KIMI_SECTION), [LS]),
        "text before it": ("I look. " + KIMI_LS.join(KIMI_SECTION), ["I look.", LS]),
        "several": ((KIMI_LS + KIMI_LS.replace(":0", ":1")).join(KIMI_SECTION), [LS, LS]),
        "no arguments": (
            KIMI_LS.replace("bash", "now").replace('{"command": "ls"}', "{}").join(KIMI_SECTION),
            [("now", "{}")],
        ),
        "white space in the section": (
            f"{KIMI_SECTION[0]}\n{KIMI_LS} \n{KIMI_LS}\n{KIMI_SECTION[1]}",
            [LS, LS],
        ),
        "without the section": (KIMI_LS, [LS]),
        "a name with a dot and no count": (
            KIMI_LS.replace("bash:0", "a.b"),
            [("a.b", '{"command":"ls"}')],
        ),
        "cut off in the head": (
            "<|tool_call_begin|>functions.ba",
            ["<|tool_call_begin|>functions.ba"],
        ),
        "cut off in the arguments": (
            KIMI_LS[: KIMI_LS.index('s"}')],
            [KIMI_LS[: KIMI_LS.index('s"}')]],
        ),
        "something else in the section": (
            f"{KIMI_SECTION[0]} none {KIMI_SECTION[1]}",
            [f"{KIMI_SECTION[0]} none {KIMI_SECTION[1]}"],
        ),
    },
    "glm": {
        "one call": (GLM_PARIS, [PARIS]),
        "text around it": (f"I look.\n{GLM_PARIS}\nDone.", ["I look.", PARIS, "Done."]),
        "several": (f"{GLM_PARIS}\n{GLM_PARIS}", [PARIS, PARIS]),
        "no arguments": ("<tool_call>now\n</tool_call>", [("now", "{}")]),
        "without newlines": (GLM_PARIS.replace("\n", ""), [PARIS]),
        "a text of several lines is kept to the character": (
            "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>\ncat <<E\n a \nE\n"
            "</arg_value>\n</tool_call>",
            [("bash", '{"command":"\\ncat <<E\\n a \\nE\\n"}')],
        ),
        "closing tags inside a value": (
            "<tool_call>bash\n<arg_key>command</arg_key><arg_value>a</arg_value> b</tool_call> c"
            "</arg_value></tool_call>",
            [("bash", '{"command":"a</arg_value> b</tool_call> c"}')],
        ),
        "values after their schema": (
            "<tool_call>write_file\n<arg_key>mode</arg_key><arg_value> 420 </arg_value>"
            '<arg_key>tags</arg_key><arg_value>["a", "b"]</arg_value></tool_call>',
            [("write_file", '{"mode":420,"tags":["a","b"]}')],
        ),
        "JSON between the tags": (f"<tool_call>{GRANITE_LS}</tool_call>", [LS]),
        "the tag in prose": ("Write <tool_call> and then\n", ["Write <tool_call> and then\n"]),
        "a key without its end": (
            GLM_PARIS.replace("days</arg_key>", "days<x>"),
            [GLM_PARIS.replace("days</arg_key>", "days<x>")],
        ),
        "cut off in the name": ("<tool_call>get_w", ["<tool_call>get_w"]),
        "cut off in a text": (
            GLM_PARIS[: GLM_PARIS.index("ris")],
            [GLM_PARIS[: GLM_PARIS.index("ris")]],
        ),
        "cut off in another value": (
            GLM_PARIS[: GLM_PARIS.index("3") + 1],
            [GLM_PARIS[: GLM_PARIS.index("3") + 1]],
        ),
    },
    "glm_47": {
        "one call": (GLM_PARIS.replace("\n", ""), [PARIS]),
        "several": (GLM_PARIS.replace("\n", "") * 2, [PARIS, PARIS]),
        "no arguments": ("<tool_call>now</tool_call>", [("now", "{}")]),
        "text before it": (f"I look.{GLM_PARIS}".replace("\n", ""), ["I look.", PARIS]),
    },
    "granite": {
        "one call": (f"<|tool_call|>[{GRANITE_LS}]", [LS]),
        "several": (f"<|tool_call|>[{GRANITE_LS}, {GRANITE_LS}]", [LS, LS]),
        "no arguments": (
            '<|tool_call|>[{"name": "now", "arguments": {}}]',
            [("now", "{}")],
        ),
        "with a closing marker": (f"<|tool_call|>[{GRANITE_LS}]<|/tool_call|>", [LS]),
        "the older marker": (f"<function_call> {GRANITE_LS}", [LS]),
        "text before it": (f"I look.\n\n<|tool_call|>[{GRANITE_LS}]", ["I look.", LS]),
        "the marker in prose": ("A <|tool_call|> is", ["A <|tool_call|> is"]),
    },
    "hunyuan": {
        "one call": (f"<tool_calls>[{GRANITE_LS}]</tool_calls>", [LS]),
        "several": (f"<tool_calls>[{GRANITE_LS}, {GRANITE_LS}]</tool_calls>", [LS, LS]),
        "lines in place of a list": (
            f"<tool_calls>\n{GRANITE_LS}\n{GRANITE_LS}\n</tool_calls>",
            [LS, LS],
        ),
        "text around it": (
            f"I look.\n<tool_calls>[{GRANITE_LS}]</tool_calls> Done.",
            ["I look.", LS, "Done."],
        ),
        "without its end": (f"<tool_calls>[{GRANITE_LS}]", [LS]),
        "the marker in prose": ("A <tool_calls> is", ["A <tool_calls> is"]),
    },
    "nemotron": {
        "one call": (f"<TOOLCALL>[{GRANITE_LS}]</TOOLCALL>", [LS]),
        "several": (f"<TOOLCALL>[{GRANITE_LS}, {GRANITE_LS}]</TOOLCALL>", [LS, LS]),
        "no arguments": (
            '<TOOLCALL>[{"name": "now", "arguments": {}}]</TOOLCALL>',
            [("now", "{}")],
        ),
    },
    "command_r": {
        "one call": (f"<|START_ACTION|>[\n    {COMMAND_R_LS}\n]<|END_ACTION|>", [LS]),
        "several": (
            f"<|START_ACTION|>[\n    {COMMAND_R_LS},\n    {COMMAND_R_LS}\n]<|END_ACTION|>",
            [LS, LS],
        ),
        "a number for an id": (
            f"<|START_ACTION|>[{COMMAND_R_LS.replace(QUOTED_ZERO, '0')}]<|END_ACTION|>",
            [LS],
        ),
        "text before it": (
            f"I look.<|START_ACTION|>[\n    {COMMAND_R_LS}\n]<|END_ACTION|>",
            ["I look.", LS],
        ),
    },
    "functools": {
        "one call": (f"functools[{GRANITE_LS}]", [LS]),
        "several": (f"functools[{GRANITE_LS}, {GRANITE_LS}]", [LS, LS]),
        "the marker in prose": ("Use functools.wraps [1].", ["Use functools.wraps [1]."]),
        "code that looks like it": ("functools[0]", ["functools[0]"]),
    },
    "function_gemma": {
        "one call": (FG_PARIS, [PARIS]),
        "several": (f"{FG_PARIS}{FG_PARIS}", [PARIS, PARIS]),
        "text before it": (f"I look. {FG_PARIS}", ["I look.", PARIS]),
        "no arguments": ("<start_function_call>call:now{}<end_function_call>", [("now", "{}")]),
        "nested": (
            "<start_function_call>call:f{a:[{b:<escape>x, }y<escape>,c:null},1.5,true],d:{}}"
            "<end_function_call>",
            [("f", '{"a":[{"b":"x, }y","c":null},1.5,true],"d":{}}')],
        ),
        "spaces": (
            "<start_function_call> call:f { a : 1 , b : <escape> x <escape> }<end_function_call>",
            [("f", '{"a":1,"b":" x "}')],
        ),
        "keys between quote markers": (
            "<start_function_call>call:f{<escape>a b<escape>:1}<end_function_call>",
            [("f", '{"a b":1}')],
        ),
        "a text without its markers": (
            "<start_function_call>call:f{a:Paris,b:01}<end_function_call>",
            [("f", '{"a":"Paris","b":"01"}')],
        ),
        "a word that may be what is left of a text": (
            "<start_function_call>call:f{a:)30,b:1}<end_function_call>",
            ["<start_function_call>call:f{a:)30,b:1}<end_function_call>"],
        ),
        "what may be a broken number of a tool without a schema": (
            "<start_function_call>call:f{a:7e}<end_function_call>",
            ["<start_function_call>call:f{a:7e}<end_function_call>"],
        ),
        "JSON": (
            '<start_function_call>call:f{"a": "x\\"y", "b": [1, 2]}<end_function_call>',
            [("f", '{"a":"x\\"y","b":[1,2]}')],
        ),
        "quotes, lines and backslashes in a text": (
            '<start_function_call>call:f{a:<escape>"x"\n\\n<escape>}<end_function_call>',
            [("f", '{"a":"\\"x\\"\\n\\\\n"}')],
        ),
        "the marker in prose": (
            "<start_function_call> is a marker",
            ["<start_function_call> is a marker"],
        ),
        "cut off in a text": (
            FG_PARIS[: FG_PARIS.index("ris")],
            [FG_PARIS[: FG_PARIS.index("ris")]],
        ),
        "cut off in a number": (
            FG_PARIS[: FG_PARIS.index("}")],
            [FG_PARIS[: FG_PARIS.index("}")]],
        ),
        "broken": (
            "<start_function_call>call:f{a:1}}<end_function_call>",
            ["<start_function_call>call:f{a:1}}<end_function_call>"],
        ),
    },
    "gemma_4": {
        "one call": (G4_PARIS, [PARIS]),
        "several": (f"{G4_PARIS}{G4_PARIS}", [PARIS, PARIS]),
        "text before it": (f"I look.\n{G4_PARIS}", ["I look.", PARIS]),
        "no arguments": ("<|tool_call>call:now{}<tool_call|>", [("now", "{}")]),
        "nested": (
            '<|tool_call>call:f{a:{b:[1,{c:<|"|>x, }y<|"|>}]},d:true}<tool_call|>',
            [("f", '{"a":{"b":[1,{"c":"x, }y"}]},"d":true}')],
        ),
        "a list of texts": (
            '<|tool_call>call:f{a:[<|"|>x<|"|>,<|"|>y|"z<|"|>]}<tool_call|>',
            [("f", '{"a":["x","y|\\"z"]}')],
        ),
    },
    "harmony": {
        "one call": (HARMONY_LS, [LS]),
        "text before it": (f"I look.{HARMONY_LS}", ["I look.", LS]),
        "cut off": (HARMONY_LS[:-3], [HARMONY_LS[:-3]]),
    },
    "lfm2": {
        "one call": ('<|tool_call_start|>[bash(command="ls")]<|tool_call_end|>', [LS]),
        "several": (
            "<|tool_call_start|>[bash(command='ls'), get_weather(city=\"Paris\", days=3)]"
            "<|tool_call_end|>",
            [LS, PARIS],
        ),
        "text around it": (
            'I look.\n<|tool_call_start|>[bash(command="ls")]<|tool_call_end|> Done.',
            ["I look.", LS, "Done."],
        ),
        "no arguments": ("<|tool_call_start|>[now()]<|tool_call_end|>", [("now", "{}")]),
        "JSON's values": (
            "<|tool_call_start|>[f(a=true, b=null, c=[1, {}])]<|tool_call_end|>",
            [("f", '{"a":true,"b":null,"c":[1,{}]}')],
        ),
        "JSON": (f"<|tool_call_start|>{GRANITE_LS}<|tool_call_end|>", [LS]),
        "without its end": ('<|tool_call_start|>[bash(command="ls")]', [LS]),
        "the marker in prose": ("A <|tool_call_start|> is", ["A <|tool_call_start|> is"]),
    },
    "seed": {
        "one call": (SEED_PARIS, [PARIS]),
        "several": (f"{SEED_PARIS}\n{SEED_PARIS}", [PARIS, PARIS]),
        "text around it": (f"I look.\n{SEED_PARIS} Done.", ["I look.", PARIS, "Done."]),
        "a text of several lines is kept to the character": (
            SEED_PARIS.replace("Paris", "\na\n"),
            [("get_weather", '{"city":"\\na\\n","days":3}')],
        ),
        "no arguments": (
            "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
            [("now", "{}")],
        ),
        "the marker in prose": ("A <seed:tool_call> is", ["A <seed:tool_call> is"]),
    },
    "minimax": {
        "one call": (INVOKE_PARIS.join(MINIMAX_SECTION), [PARIS]),
        "several": (f"{INVOKE_LS}\n{INVOKE_PARIS}".join(MINIMAX_SECTION), [LS, PARIS]),
        "text around it": (
            "I look.\n" + INVOKE_LS.join(MINIMAX_SECTION) + " Done.",
            ["I look.", LS, "Done."],
        ),
        "without its section": (INVOKE_LS, [LS]),
        "no arguments": (
            '<invoke name="now">\n</invoke>'.join(MINIMAX_SECTION),
            [("now", "{}")],
        ),
        "a text of several lines is kept to the character": (
            INVOKE_LS.replace("ls", "\ncat <<E\n <a>\nE\n").join(MINIMAX_SECTION),
            [("bash", '{"command":"\\ncat <<E\\n <a>\\nE\\n"}')],
        ),
        "closing tags inside a value": (
            INVOKE_LS.replace("ls", "a</parameter> b").join(MINIMAX_SECTION),
            [("bash", '{"command":"a</parameter> b"}')],
        ),
    },
    "plain": {
        "one call": (GRANITE_LS, [LS]),
        "several": (f"{GRANITE_LS}\n{GRANITE_LS}", [LS, LS]),
        "cut off before its arguments": ('{"name": "ba', ['{"name": "ba']),
        "something else": ("No call.", ["No call."]),
    },
}
