"""The scripts of the pictures on the comparison page, one for each, and what draws their charts."""
