"""The parts of the rules example: the operator, its coordinator, and the proof of their result."""
