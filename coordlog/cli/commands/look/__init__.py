"""Commands that show a job or its history in other forms than a table, and change nothing.

One module for each command, or two that share their places. May import everything but the other commands and
`cli.ingest`.
Read first: `history.history`.
"""
