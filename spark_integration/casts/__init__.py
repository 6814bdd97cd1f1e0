"""Whether a value fits a type exactly, and its cast.

Imports nothing else of the Spark integration.
Read first: `exact_cast`.
"""
