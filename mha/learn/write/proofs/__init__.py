"""The texts of proofs: what is the same for all, and how each framework computes."""
