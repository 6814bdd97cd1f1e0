"""The attempt's side: a chain of operators at work in a task.

May import `api` and `payloads`; knows neither Spark nor the log.
Read first: `attempt`.
"""
