"""What does a green comparison not show? Known mistakes that would have passed on the same inputs."""
