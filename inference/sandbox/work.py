"""Does one job, in a worker. Knows neither sockets nor limits: the worker process sets them."""

from __future__ import annotations

import traceback

from inference.sandbox import jobs
from inference.sandbox.build import build_grammar
from inference.sandbox.errors import LossReason
from inference.text.chat_template import ChatTemplate
from inference.text.errors import GrammarRefusedError, TemplateRenderError
from inference.text.template_sources import TemplateSources
from inference.text.tokenizer import num_bytes


def perform(job: jobs.Job, max_output_bytes: int) -> jobs.Result:
    """Never raises: a panic of a library, which is no ``Exception``, is a result as well."""
    try:
        if isinstance(job, jobs.BuildGrammar):
            return build_grammar(job)
        return _render(job, max_output_bytes)
    except GrammarRefusedError as error:
        return jobs.Refused(code=error.code, message=str(error), param=error.param)
    except TemplateRenderError as error:
        return jobs.Refused(code="template_render_failed", message=str(error), param=error.param)
    except MemoryError:
        return jobs.Broken(reason=LossReason.MEMORY)
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is no Exception
        # The error's type and line; its message may quote the request.
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{type(error).__name__} in {frame.f_code.co_filename}:{line}"
        return jobs.Broken(reason=LossReason.CRASH, where=where)


def _render(job: jobs.RenderChat, max_output_bytes: int) -> jobs.Result:
    sources = TemplateSources(job.default_template, job.tool_template)
    rendered = ChatTemplate(sources, job.special_tokens).render(job.chat)
    if num_bytes(rendered.text) > max_output_bytes:
        return jobs.Broken(reason=LossReason.OUTPUT)
    return jobs.Rendered(text=rendered.text, loses_system_turns=rendered.loses_system_turns)
