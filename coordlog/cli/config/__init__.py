"""Settings from `coordlog.toml` and variables.

May import `cli.exit_status`.
Read first: `file`.
"""
