"""The Spark task's side: a connection to the driver, and the attempt that it runs.

May import `wire`.
Read first: `task`.
"""
