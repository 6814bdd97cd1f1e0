"""Stores of files: local folders and S3.

May import the modules of `files`.
Read first: `store`.
"""
