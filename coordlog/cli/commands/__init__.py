"""The commands, in packages as `coordlog --help` groups them: run, look with tables, repair, machine.

Each package may import everything but `cli.ingest`. `coordlog.cli.main` lists the commands.
Read first: `look.history`.
"""
