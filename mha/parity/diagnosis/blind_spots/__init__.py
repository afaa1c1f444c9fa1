"""Find the known mistakes that would have passed a green comparison on the same inputs."""
