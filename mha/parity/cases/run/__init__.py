"""How does a suite run: in which processes, on which devices, and with which report?"""
