"""The parts of the demo: computations, and the processes that it starts, follows and kills."""
