"""The names of the book's next edition in each framework."""
