"""Tables that people read: attempts, splits, checkpoints, commits, events, failures, reads, progress.

May import `projections.snapshot` and what is below it.
Read first: `audit`.
"""
