"""For learners and teachers: steps of a call, the comparison page, pictures, the book, heads, grades, written files."""
