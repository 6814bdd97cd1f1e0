"""Topics of the user's own as a source."""
