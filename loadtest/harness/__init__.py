"""What the chaos test and the comparison share: processes, networks, clocks, and clusters made of
them."""
