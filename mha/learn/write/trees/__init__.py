"""Programs as syntax trees: what is known is folded, what is called once inlined, what nobody needs taken out."""
