"""The parts of `adversaries.py`: handwritten HTTP/2, the attacks, and the measurements
during them."""
