"""Search for known mistakes that give the numbers of another implementation, and judge those that come near."""
