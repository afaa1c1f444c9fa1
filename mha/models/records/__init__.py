"""Records of whole models: what entered and left every module, kept to be compared with another model's, or judged."""
