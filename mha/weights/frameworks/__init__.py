"""The frameworks' own layers and the book's, in and out, a file for each; and the caches of its libraries."""
