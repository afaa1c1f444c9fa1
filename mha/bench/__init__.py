"""What `mha bench` measures: time and peak memory of every backend's layer and calls beside the frameworks' own."""
