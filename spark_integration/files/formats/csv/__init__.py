"""CSV: options, the one schema of a source, rows of a split.

May import the modules of `files`, `formats.text`, `formats.inferring` and `casts`.
Read first: `rows.CsvRows`.
"""
