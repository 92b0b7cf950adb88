"""helexa-bench: measures endpoints' speed, build by build.

    choosing ─▶ sweep of targets (client, probing) ─▶ measuring ─▶ runs
    runs ─▶ results (cells) ─▶ comparison, tables, charts ─▶ api, pages, command

``scenarios``, ``probing`` and ``comparison`` are pure.
"""
