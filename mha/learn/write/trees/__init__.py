"""Programs as syntax trees: fold known values, inline functions that are called once, take out what nobody needs."""
