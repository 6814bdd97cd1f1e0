"""Coordinators that are ready to be used."""
