"""Where files stand: local folders and S3.

May import the modules of `files`.
Read first: `store`.
"""
