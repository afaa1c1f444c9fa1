"""Find a wrong description of the comparison: another call, other positions, or more than attention."""
