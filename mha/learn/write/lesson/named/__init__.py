"""Give a layer weights under the names of a checkpoint: rename its parts, or add a method that loads them."""
