"""The commands of ``python -m vkrnn``."""
