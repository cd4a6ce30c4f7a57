"""Recommenders: embedding tables, their lookups and placement, and models of dense features and looked-up rows."""
