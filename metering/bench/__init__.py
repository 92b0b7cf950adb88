"""helexa-bench: measures endpoints' speed, build by build.

    choosing ─▶ targets (client, probing) ─▶ sweep ─▶ measuring ─▶ store ─▶ runs
    runs ─▶ results (cells) ─▶ comparison, tables, charts ─▶ api, pages, command

``scenarios``, ``answers``, ``probing``, ``comparison`` and ``bench_toml`` are pure.
"""
