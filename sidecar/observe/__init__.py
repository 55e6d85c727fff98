"""What the sidecar tells about itself: metrics, health, logs, and the HTTP server that shows them."""
