"""From comparisons to a page and a terminal table. No torch here."""
