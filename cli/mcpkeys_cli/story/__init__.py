"""What `mcpkeys demo` runs: a server, a balancer in front of several of them, and clients that keep calling."""
