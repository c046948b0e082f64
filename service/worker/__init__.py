"""Fits in worker processes: the queue, the workers, and who watches over them."""
