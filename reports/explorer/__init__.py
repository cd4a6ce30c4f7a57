"""The explorer: a local page on which a scenario is changed while its prediction is updated."""
