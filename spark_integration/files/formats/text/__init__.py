"""Bytes and lines of text files, in every encoding; rows of text.

May import the modules of `files`.
Read first: `text_bytes.TextBytes`.
"""
