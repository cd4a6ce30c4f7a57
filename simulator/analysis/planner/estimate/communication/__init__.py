"""Times of messages between stages, of gradient synchronisation, and of layer-by-layer gathers."""
