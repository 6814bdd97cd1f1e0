"""`coordlog ingest`: options, preflight, run, display.

May import everything.
Read first: `command.ingest`.
"""
