"""A driver at work: one mailbox, turns, appends, then effects.

May import `restore`, `kernel`, `log`; knows no Spark.
Read first: `driver.JobDriver`; `life` is its beginning, upkeep and end.
"""
