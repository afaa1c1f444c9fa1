"""The scripts of the comparison page, in one scope: `mha/page/make.py` says in which order."""
