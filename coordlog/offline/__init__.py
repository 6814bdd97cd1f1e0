"""Commands on a job's log that run beside or in the place of its driver: adopt, fork, prune, doctor.

May import `runtime`.
Read first: `epoch`.
"""
