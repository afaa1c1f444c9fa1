"""What enters and leaves the modules of a model, in each framework."""
