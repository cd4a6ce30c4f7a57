"""Links, topologies and the routes that messages take through them."""
