"""From a log to a state: rebuild, compatibility, rollback, the snapshot to start from.

May import `kernel`, `log`, `projections`.
Read first: `rebuild.rebuild`.
"""
