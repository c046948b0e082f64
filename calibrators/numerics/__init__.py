"""Numerical ground of the methods: parallel blocks, softmax, curves."""
