"""Run a suite: in processes, on devices, and with a report."""
