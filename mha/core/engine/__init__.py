"""How a call that keeps no attention weights is computed in less time and memory: what is the same for all backends."""
