"""Commands that keep, copy, check and remove histories.

May import everything but `commands.run`, `commands.machine` and `cli.ingest`.
Read first: `doctor.doctor`.
"""
