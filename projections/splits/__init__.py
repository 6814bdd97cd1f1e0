"""The state of splits: known, assigned, finished, given back, skipped.

May import `projections.operators`.
Read first: `fold.SplitsState`.
"""
