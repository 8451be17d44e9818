"""What `adversaries.py` is made of: hand-made HTTP/2, the attacks, and what is measured beside them."""
