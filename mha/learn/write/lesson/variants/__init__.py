"""What a file has in the place of the lesson's: a kernel that pools, modules of another kind."""
