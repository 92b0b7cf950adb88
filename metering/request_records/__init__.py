"""A row for each request that reached a gateway: written in batches beside the requests, limited in
age and number, found by its id or by filters.

    event loop ── add ─▶ bounded queue ─▶ writer thread ─▶ metering_requestrecord ─▶ retention
"""
