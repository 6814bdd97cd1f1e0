"""The commands, in four packages as `coordlog --help` groups them: run, look, repair, machine.

Each package may import everything but `cli.ingest`. `coordlog.cli.main` lists the commands.
Read first: `look.history`.
"""
