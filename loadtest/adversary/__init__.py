"""The parts of `adversaries.py`: handwritten HTTP/2, the attacks, and what is measured
meanwhile."""
