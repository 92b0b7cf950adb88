"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ commands ─▶ environment ─▶ serve ─┬─ data_directory   lock, writable or not
      (standard library only)                      ├─ supervisor       starts and stops processes
                                                   ├─ redis_server
                                                   ├─ children         gateway, neuron …
                                                   └─ readiness        waits for an answer

Knows neither requests nor tensors. Modules that run before the requirements are installed
(``commands``, ``arguments``, ``environment``, ``sharing``) import the standard library only.
"""
