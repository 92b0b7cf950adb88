"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line.

    manage.py ─▶ commands ─▶ environment ─▶ serve ─┬─ data_directory   lock, joined hosts
      (standard library only)                      ├─ redis_server
                                                   ├─ supervisor       starts and stops processes
                                                   ├─ database         migrations, first admin
                                                   └─ readiness        waits for an answer

Knows neither requests nor tensors. Modules that run before the requirements are installed
(``commands``, ``arguments``, ``data_directory``, ``environment``, ``sharing``) import the standard
library only.
"""
