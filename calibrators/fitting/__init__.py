"""Support for fits: context, parameter checks, devices, evaluation."""
