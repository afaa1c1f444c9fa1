"""docs/semantics.md as a program: `python docs/make_semantics.py` writes it.

calls: the inputs. rows: the tables, and the promise of `mha` in each row. columns: `mha` and the others that answer.
verdicts: a word for each answer. promises: rules without a counterpart to compare with. page: all of it as text.
"""
