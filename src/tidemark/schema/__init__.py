"""What a table is, as values: its columns and types down to their labels, and what a change of them means. All pure."""
