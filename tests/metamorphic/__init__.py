"""Relations that hold between predictions of related scenarios, whatever the right numbers are."""
