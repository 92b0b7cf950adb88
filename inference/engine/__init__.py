"""One loaded model: scheduling, paged KV, running, sampling. Token ids in, typed events out.

    engine            schedule → run → sample → commit → emit
    step, sequence    its rows, its tokens as events, the last speeds; a request   (no torch)
    scheduler, waiting_queue, pace, run_ahead
                      what runs in the next step, and for whom                     (no torch)
    kv_cache, state_slots, prefix_disk, prefix_files
                      which block holds which tokens; prefixes on disk
    executor, model_runner
                      the tensor half of a step: a schedule becomes logits, then tokens
    sampler, logits_processors, grammars, drawing
                      logits become tokens
    adapters, prompt_images
                      LoRA adapters in slots; where a prompt's images are
    faults            classifies a step's exceptions, and isolates the rows at fault
    embedding_engine  the engine of an embedding model
    process, loop     the engine as a process at the end of a socket: commands in, outputs out
    speculation/      drafts of the next tokens
    load/             from a load spec to an engine that answers
    divided/          a model on several devices or hosts: ranks and stages

Knows no text, no HTTP, no Django, no Celery.
"""
