"""What `mha bench` measures: time and peak memory of every backend's layer beside the frameworks' own layers."""
