"""Case files: a layer, a call of it or a decode, and the results, for any framework to compare itself with."""
