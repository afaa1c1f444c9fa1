"""What is measured in each framework: our layer beside the framework's own."""
