"""Broker."""
