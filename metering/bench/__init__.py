"""helexa-bench: measures endpoints' speed, build by build.

    command, tasks ─▶ sweep ─▶ targets (client) ─▶ runs
    runs ─▶ results (cells) ─▶ measures, tables ─▶ api, pages, command

``measures`` are pure: scenarios, metrics and verdicts.
"""
