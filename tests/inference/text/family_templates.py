"""Small chat templates that ask of their input what those of four model families do.

QWEN iterates a call's arguments, shows thinking and may close the block in the prompt; LLAMA writes
arguments with ``tojson``, one call a turn; MISTRAL wants turns to alternate, short identifiers and
the tools beside the last user turn; GEMMA wants turns to alternate and has no place for systems and
tools.
"""

QWEN = """
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools or system -%}
<|im_start|>system
{{ system }}
{%- for tool in tools or [] %}

{{ tool | tojson }}
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
<|im_start|>assistant
{% if m.reasoning_content is string %}<think>
{{ m.reasoning_content.strip('\\n') }}
</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- for key, value in call.function.arguments | items %}<!--{{ key }}-->{% endfor -%}
{%- endfor -%}<|im_end|>
{% elif m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'user' or not loop.first -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif -%}
"""

LLAMA = """
{{- bos_token -}}
<|start_header_id|>system<|end_header_id|>

{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}
{% endfor %}{{ messages[0].content if messages[0].role == 'system' else '' }}<|eot_id|>
{%- for m in messages if m.role != 'system' -%}
<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if m.tool_calls is defined -%}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls only') }}{% endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}
{%- elif m.role == 'tool' -%}
{{ m.content | tojson }}
{%- else -%}
{{ m.content | trim }}
{%- endif -%}<|eot_id|>
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
