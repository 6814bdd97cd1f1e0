"""Inspection."""
