"""The file source: discovery, splits, reader.

May import all else of `files`.
Read first: `source.FileSource`.
"""
