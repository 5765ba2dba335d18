"""Sync: bringing tables in while everything streams, and keeping a whole database mirrored."""
