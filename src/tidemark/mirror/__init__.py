"""What users import: an opened mirror, moments, changes, history, differences, and comparison with the source."""
