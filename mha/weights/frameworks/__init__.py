"""Convert the frameworks' own layers and the book's, a file for each; and the caches of their libraries."""
