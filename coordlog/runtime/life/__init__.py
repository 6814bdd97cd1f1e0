"""Beginning, upkeep and end of a driver.

May import what `runtime` may.
Read first: `cut_start`, then `ending` and `closing`.
"""
