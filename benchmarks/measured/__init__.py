"""What the benchmarks measure: appends, histories, kernels, jobs and their connections.

May import coordlog, `benchmarks.command` and `benchmarks.results`.
Read first: `records`.
"""
