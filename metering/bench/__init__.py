"""helexa-bench: how fast endpoints are, build by build.

    targets ─▶ probe (build, models) ─▶ plan ─▶ sample over HTTP ─▶ runs ─▶ statistics ─▶ API, pages

``sweeps`` acts, ``results`` compares, ``client`` speaks HTTP, ``store`` writes. Most
modules of the first two are pure: their docstrings name it.
"""
