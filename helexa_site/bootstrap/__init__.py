"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ installing ─▶ serving/serve ─┬─ data_directory   lock, secrets, writable or not
      (standard library only)                 ├─ processes/supervisor   starts and stops processes
                                              └─ start ─┬─ private_redis/redis_server
                                                        ├─ processes/children   gateway, neuron …
                                                        └─ readiness   waits until a model answers

Nothing here knows what a request or a tensor is. Modules that run before the requirements are
installed (``console``, those of ``installing``) use the standard library only.
"""
