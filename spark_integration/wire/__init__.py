"""Communication of driver, attempts and clients over sockets: messages, token, certificate.

May import the core of coordlog.
Read first: `messages`.
"""
