"""One loaded model: scheduling, paged KV, running, sampling. Token ids in, typed events out.

    sequence ─ what one request is to the engine        (no torch)
    kv_cache ─ which block holds which tokens           (no torch)
    scheduler ─ what runs in this step, and for whom    (no torch)
    step_pacing ─ how much a step may hold              (no torch)
    model_runner ─ a schedule becomes tensors and logits
    sampler ─ logits become tokens; filters, penalties, thinking, masks are its parts
    grammars, pending_grammars ─ what an output must follow, compiled off the engine's thread
    engine ─ schedule → run → sample → commit → emit
    process, channel ─ the engine as a process at the end of a socket

Knows no text, no HTTP, no Django, no Celery.
"""
