"""Micro-batches written exactly once: files, databases, tables.

May import `driver`, `files` and `wire`.
Read first: `exactly_once.exactly_once`.
"""
