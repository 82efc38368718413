"""Arrays of other libraries in host memory."""
