"""One module per command, or per few that share their options.

May import everything but `cli.ingest`.
"""
