"""Known mistakes as data: a name, an effect, and functions that put the mistake into a plan."""
