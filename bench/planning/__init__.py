"""Planning: from what was typed to the cases of a run, their order and their expected time."""
