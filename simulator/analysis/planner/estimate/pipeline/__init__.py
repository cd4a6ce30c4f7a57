"""Time that pipeline ranks are busy with a step's passes: closed forms, lower bounds, and a recurrence over passes."""
