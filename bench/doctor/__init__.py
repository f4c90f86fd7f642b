"""`python -m bench doctor`: what this box has, what would bite a run, and how to mend it."""
