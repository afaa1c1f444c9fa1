"""The book's names in each framework."""
