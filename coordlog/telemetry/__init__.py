"""What a job reports while it runs: metrics, traces, lineage, health and log lines; and traces of a stored log.

May import `coordlog.runtime` and what is below it. The libraries are extras, and each is imported in one module.
Read first: `observer.Observer`.
"""
