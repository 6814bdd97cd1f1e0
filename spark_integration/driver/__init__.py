"""The Spark driver's side: endpoint, stage, driver files, liveness.

May import `task` and `wire`.
Read first: `endpoint.Endpoint`.
"""
