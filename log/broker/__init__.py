"""A Kafka broker on this machine: jars, process, guard, and the one that programs share.

May import `log.local`.
Read first: `embedded.embedded_broker`.
"""
