"""What all modules may use: warnings, optional packages, and names of the typing module."""
