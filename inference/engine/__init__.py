"""One loaded model: scheduling, paged KV, running, sampling. Token ids in, typed events out.

    engine          schedule → run → sample → commit → emit
    scheduling/     what runs in the next step, and for whom           (no torch)
    kv_cache        which block holds which tokens                     (no torch)
    model_runner    a schedule becomes tensors and logits
    sampling/       logits become tokens
    executor        the tensor half of a step: the model runner, then the sampler
    images/         images of prompts: where they are, and their rows
    faults/         what went wrong, and whose row it was
    load/           from a load spec to an engine that answers
    embedding/      the engine of an embedding model
    serving/        the engine as a process at the end of a socket

Knows no text, no HTTP, no Django, no Celery.
"""
