"""Programs that use a server as other projects do, and print what they have seen. The arguments name the server."""
