"""Charts as inline SVG, one module a kind."""
