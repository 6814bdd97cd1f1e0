"""The page of `coordlog report`, served for the jobs of a broker, and renewed while they live."""
