"""The controls of the explorer: fields of a scenario, with the choices that are valid with its other fields."""
