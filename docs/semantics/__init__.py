"""docs/semantics.md as a program: `python docs/make_semantics.py` writes it.

calls: what goes in. rows: the tables, and what `mha` promises in each row. columns: whom a row is asked of. verdicts:
what an answer is in a word. promises: what has no counterpart to compare with. page: all that as text.
"""
