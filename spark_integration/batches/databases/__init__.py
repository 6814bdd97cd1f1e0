"""Batches into tables of databases.

May import `batches` and what is below it.
Read first: `database.DatabaseTable`.
"""
