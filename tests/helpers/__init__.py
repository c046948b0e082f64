"""What tests share: services, servers, samples and clients."""
