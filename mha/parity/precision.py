def explanations(problem, steps): return []
