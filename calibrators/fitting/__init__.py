"""What a fit needs beside its method: context, parameters, devices, evaluation."""
