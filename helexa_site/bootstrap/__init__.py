"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ environment ─▶ serve ─┬─ data_directory   lock, secrets, writable or not
               (standard library only) ├─ redis_server     a private Redis
                                       ├─ supervisor       gateway, control, neuron; guardian
                                       └─ readiness        waits until the model answers

Nothing here knows what a request or a tensor is. Modules that run before the requirements are
installed (``console``, ``environment``, ``requirements``) use the standard library only.
"""
