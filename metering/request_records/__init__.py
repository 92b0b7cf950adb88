"""A row for each request that reached a gateway: written in batches beside the requests, kept for
so long and so many, found by its id or by what it was.

    event loop ── add ─▶ bounded queue ─▶ writer thread ─▶ metering_requestrecord ─▶ retention
"""
