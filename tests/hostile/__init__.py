"""Bytes that nobody of ours has written, on the endpoint and in the topic: `make fuzz`."""
