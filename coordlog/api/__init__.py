"""Interfaces that authors implement: coordinators, operators, and the chain that they form.

May import messages, projections and schemas.
Read first: `coordinator.OperatorCoordinator`.
"""
