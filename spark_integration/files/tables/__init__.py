"""Sinks of tables: the files of the Parquet sink, added to a table by its own commits, each once.

May import `files.sink` and what is below it.
Read first: `table_files.TableFiles`.
"""
