"""History frames."""
