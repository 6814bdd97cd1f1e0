"""Commands that act on a job that runs, or begin one: skip, savepoint, fork.

May import everything but the other commands and `cli.ingest`.
Read first: `skip.skip`.
"""
