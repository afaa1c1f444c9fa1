"""Was it described wrongly what was compared? Another call, other positions, or more than attention."""
