"""Make the text of one layer from the lesson of a framework: read it, specialise it, and finish the text."""
