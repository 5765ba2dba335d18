"""The pipeline from the source to the lake: apply, copy, poll, fold and expire, and the loop that runs them."""
