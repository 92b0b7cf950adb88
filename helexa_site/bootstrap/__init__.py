"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ commands ─▶ environment ─▶ serve ─┬─ redis_server
      (standard library only)                      ├─ supervisor   starts and stops processes
                                                   └─ readiness    migrations, first admin; waits
                                                                   for an answer

Knows neither requests nor tensors. Modules that run before the requirements are installed
(``commands``, ``arguments``, ``console``, ``environment``) import the standard library only.
"""
