"""A cluster's hosts and links inside one Linux machine, made of network namespaces."""
