"""Batches into Delta and Iceberg tables.

May import `batches` and what is below it.
Read first: `delta.DeltaTable`.
"""
