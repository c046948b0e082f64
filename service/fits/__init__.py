"""Fits: submit, queue, run in workers, follow and cancel."""
