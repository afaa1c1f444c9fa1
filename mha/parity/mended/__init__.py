"""A model whose wrong layers give what they should: what that changes."""
