"""Commands that print a table of a history: attempts, checkpoints, commits, epochs, events, failures, reads, splits.

May import everything but the other commands and `cli.ingest`.
Read first: `attempts.attempts`.
"""
