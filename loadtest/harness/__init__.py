"""Helpers of the chaos test and the comparison: processes, networks, clocks, and clusters made of
them."""
