"""Table definitions as values: columns, types and enum labels, and the effect of a change to them; without I/O."""
