"""The state of a job: subtasks, attempts, gateways, checkpoints, intents, epochs.

May import `projections.splits` and `projections.operators`.
Read first: `fold.JobProjection`.
"""
