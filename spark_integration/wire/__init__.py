"""What driver, attempts and clients say to each other over sockets: messages, token, certificate.

May import the core of coordlog.
Read first: `messages`.
"""
