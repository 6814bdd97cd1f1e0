"""The Parquet sink: staged files, published exactly once.

May import `files.formats` and `files.store`.
Read first: `sink.ParquetSink`.
"""
