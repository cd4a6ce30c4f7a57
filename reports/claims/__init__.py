"""What the field's articles say, each claim tested by forecasts, and by measurements in a network inside one machine."""
