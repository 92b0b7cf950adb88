"""One loaded model: scheduling, paged KV, running, sampling. Token ids in, typed events out.

    engine          schedule → run → sample → commit → emit
    step            its rows, its tokens as events, the last speeds    (no torch)
    scheduling/     what runs in the next step, and for whom           (no torch)
    cache/          which block holds which tokens                     (no torch), prefixes on disk
    model_runner    the tensor half of a step: a schedule becomes tensors and logits, then samples
    sampling/       logits become tokens
    speculation/    drafts of the next tokens
    faults          classifies a step's exceptions, and isolates the rows at fault
    load/           from a load spec to an engine that answers
    embedding/      the engine of an embedding model
    serving/        the engine as a process at the end of a socket

Knows no text, no HTTP, no Django, no Celery.
"""
