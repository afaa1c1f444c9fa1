"""Submissions with mistakes, and right ones, as students write them."""
