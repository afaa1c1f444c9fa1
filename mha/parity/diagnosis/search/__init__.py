"""The search for known mistakes that give the numbers of another implementation, and verdicts on what it finds."""
