"""Where do two results differ, or two layers, and why?"""
