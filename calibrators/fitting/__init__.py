"""Support for fits: context, parameter checks, devices and evaluation."""
