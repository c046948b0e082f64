"""Test helpers: services, servers, samples and clients."""
