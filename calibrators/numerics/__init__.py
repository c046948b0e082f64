"""Numerical foundations of the methods: parallel blocks, softmax, curves and objectives."""
