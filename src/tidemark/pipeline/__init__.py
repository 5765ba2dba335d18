"""From the source into the lake: stream, copies, polls, fold and retention, and the run loop over them."""
