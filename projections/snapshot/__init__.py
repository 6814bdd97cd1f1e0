"""A job's state as one snapshot of bytes, and back.

May import `projections.job` and the folders below it.
Read first: `codec`.
"""
