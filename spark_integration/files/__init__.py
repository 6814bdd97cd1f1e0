"""Files: what lists, names and packs them, for source and sink.

May import `casts`. Layers, from below: these modules, formats and store, sink, source.
Read first: `listing`.
"""
