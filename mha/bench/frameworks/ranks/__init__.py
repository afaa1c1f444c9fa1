"""The ways to split a layer over devices in each framework, to be measured."""
