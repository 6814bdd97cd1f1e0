"""Coordinators of a driver, and the kernel's calls into their code.

May import `kernel` and `payloads`; all of it runs on the mailbox.
Read first: `coordinator_host.CoordinatorHost`.
"""
