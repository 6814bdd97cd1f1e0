"""CSV, JSON lines, Parquet and text: rows and schemas.

May import the modules of `files`, and `casts`.
Read first: `formats.FileFormat`.
"""
