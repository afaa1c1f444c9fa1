"""What `mha bench` measures of each framework, until each file has its place beside that framework's backend."""
