"""Small chat templates that ask of their input what those of four model families do.

QWEN iterates a call's arguments, shows thinking and may close the block in the prompt; LLAMA writes
arguments with ``tojson``, one call a turn; MISTRAL wants turns to alternate, short identifiers and
the tools beside the last user turn; GEMMA wants turns to alternate and has no place for systems and
tools.
"""

QWEN = """
{%- macro calls_of(m) -%}
{%- for call in m.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- for key, value in call.function.arguments | items %}<!--{{ key }}-->{% endfor -%}
{%- endfor -%}
{%- endmacro -%}
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' -%}
<|im_start|>assistant
{% if m.reasoning_content is string %}<think>
{{ m.reasoning_content.strip('\\n') }}
</think>

{% endif %}{{ m.content }}{{ calls_of(m) }}<|im_end|>
{% elif m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% endif -%}
{%- endfor -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif -%}
"""

LLAMA = """
{{- bos_token -}}
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
<|start_header_id|>system<|end_header_id|>

{% if tools is not none %}Environment: ipython
{% for tool in tools %}{{ tool | tojson(indent=4) }}
{% endfor %}{% endif %}{{ system }}<|eot_id|>
{%- for m in messages if m.role != 'system' -%}
{%- if m.tool_calls is defined -%}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls only') }}{% endif -%}
{%- set call = m.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{{ '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' -%}
<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

MISTRAL = """
{%- set turns = messages[1:] if messages[0].role == 'system' else messages -%}
{%- set users = turns | selectattr('role', 'equalto', 'user') | list -%}
{%- set spoken = namespace(count=0) -%}
{%- for m in turns if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
{%- if (m.role == 'user') != (spoken.count % 2 == 0) -%}
{{- raise_exception('roles must alternate user and assistant') -}}
{%- endif -%}
{%- set spoken.count = spoken.count + 1 -%}
{%- endfor -%}
{{- bos_token -}}
{%- for m in turns -%}
{%- if m.role == 'user' -%}
{%- if tools is not none and m == users[-1] -%}
[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST] {% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}{{ m.content }}[/INST]
{%- elif m.tool_calls is defined -%}
[TOOL_CALLS] [
{%- for call in m.tool_calls -%}
{%- if call.id | length != 9 %}{{ raise_exception('identifiers have length 9') }}{% endif -%}
{{ call.function | tojson | string | replace('}', ', "id": "' + call.id + '"}', 1) }}
{%- endfor -%}
]</s>
{%- elif m.role == 'tool' -%}
[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- else -%}
 {{ m.content }}</s>
{%- endif -%}
{%- endfor -%}
"""

GEMMA = """
{{- bos_token -}}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
{%- endif -%}
<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif -%}
"""
