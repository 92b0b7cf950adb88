"""helexa-bench: measures endpoints' speed, build by build.

    choosing ─▶ sweep ─▶ targets (client) ─▶ runs
    runs ─▶ results (cells) ─▶ comparison, tables ─▶ api, pages, command

``scenarios`` and ``comparison`` are pure.
"""
