"""helexa-bench: how fast and how good endpoints are, build by build.

    targets ─▶ probe (build, models) ─▶ plan ─▶ sample over HTTP ─▶ runs ─▶ statistics ─▶ API, pages

``statistics``, ``scenarios``, ``prompts``, ``plan``, ``cells`` and ``comparison`` are pure;
``client`` speaks HTTP, ``sweep`` acts, ``store`` writes.
"""
