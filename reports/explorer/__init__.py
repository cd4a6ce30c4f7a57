"""The explorer: a page on loopback on which a scenario is changed by hand while its forecast follows."""
