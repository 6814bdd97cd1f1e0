"""The fold of one operator's facts, and how its state is encoded.

May import `schemas`.
Read first: `operator_projection.OperatorProjection`.
"""
