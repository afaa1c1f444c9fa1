"""The options of a layer: their names, values and checks, and what some of them compute."""
