"""The parts of the rules example: the operator and its coordinator, and what proves them right."""
