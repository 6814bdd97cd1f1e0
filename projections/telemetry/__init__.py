"""What a job reports to systems outside: spans of its traces, values of its metrics, events of its lineage.

May import `projections.tables` and what is below it.
Read first: `spans`.
"""
