"""Commands about this machine: broker, jars, files, settings, shell.

May import everything but the other commands and `cli.ingest`.
Read first: `broker.broker`.
"""
