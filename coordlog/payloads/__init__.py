"""Large payloads: kept outside the log, fetched, cleaned, checked.

May import `api`, `kernel`, `log`.
Read first: `offload`.
"""
