"""The history as DataFrames.

May import everything of the Spark integration.
Read first: `frames.history`.
"""
