"""Micro-batches and batch writes, each made visible once: intent, the doing, outcome."""
