"""From samples to estimates, comparisons and checks. No torch here."""
