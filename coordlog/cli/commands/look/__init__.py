"""Commands that show a history and change nothing: one module for each command, or two that share their places.

May import everything but the other commands and `cli.ingest`.
Read first: `history.history`.
"""
