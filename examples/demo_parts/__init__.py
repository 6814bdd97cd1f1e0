"""The parts of the demo: those that only compute, and those that watch and kill."""
