"""Known mistakes, as data: what each does, and the functions that put it into a plan."""
