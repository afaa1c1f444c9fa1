"""The process that runs a submission; it imports nothing of `mha`, and knows no expected number."""
