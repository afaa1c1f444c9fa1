"""Which cases are compared, and which of their results?"""
