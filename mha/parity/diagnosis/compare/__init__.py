"""Find where two results, or two layers, differ, and why."""
