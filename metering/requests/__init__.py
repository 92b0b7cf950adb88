"""Pages and exports of request records: filters in words, rows, CSV, and the pages ``/requests/``.
Operators see all requests, members those of their accounts, a key its own."""
