"""From the lesson of a framework to the text of one layer: what it reads, knows, leaves out and says."""
