"""Files, locks and processes of this machine.

Imports nothing else of `log`.
Read first: `fsync`.
"""
