"""Questions about a stored history: state at an offset, explain, verify, redact, what a prune may remove.

May import all other projections.
Read first: `state_at`.
"""
