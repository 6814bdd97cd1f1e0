"""The report of a job: its history as one document of facts, as one self-contained page, and as a trace.

May import `history` and the projections; pure but for the files of the page, which are package data.
Read first: `document`.
"""
