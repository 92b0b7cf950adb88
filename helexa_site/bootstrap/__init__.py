"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ environment ─▶ serve ─┬─ data_directory   lock, secrets, writable or not
               (standard library only) ├─ supervisor       starts and stops processes; guardian
                                       └─ start ─┬─ redis_server   a private Redis
                                                 ├─ children       gateway, control, neuron
                                                 └─ readiness      waits until the model answers

Nothing here knows what a request or a tensor is. Modules that run before the requirements are
installed (``console``, ``environment``, ``requirements``) use the standard library only.
"""
