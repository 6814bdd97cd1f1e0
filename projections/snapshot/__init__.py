"""A job's state as one snapshot of bytes, and back.

May import `projections.job` and what is below it.
Read first: `codec`.
"""
