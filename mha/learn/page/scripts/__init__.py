"""The scripts of the comparison page, in one scope: `mha/learn/page/make.py` says in which order."""
